/** Pages without a stream of their own: what they show is read again and again, and they say when it is stale. */

import { read, Refused } from './api.js';
import { show } from './connection.js';

/**
 * Reads a path until `signal` is aborted.
 * @param {string | (() => string)} path @param {number} everyMs @param {(data: any) => void} onData @param {AbortSignal} signal
 * @param {(error: Refused) => void} onRefused told where it was refused, and will be
 */
export function poll(path, everyMs, onData, signal, onRefused) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
  let heard = Date.now();
  show({ kind: 'connecting' });
  const look = async () => {
    clearTimeout(timer);
    try {
      const data = await read(typeof path === 'string' ? path : path(), signal);
      heard = Date.now();
      show({ kind: 'live' });
      onData(data);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused)) throw error;
      if (error.status && error.status < 500 && error.status !== 429) {
        show({ kind: 'refused', why: error });
        return onRefused(error);
      }
      show({ kind: 'stale', since: heard, retryAt: Date.now() + everyMs, why: error.message }, () => void look());
    }
    timer = setTimeout(() => void look(), everyMs);
  };
  signal.addEventListener('abort', () => clearTimeout(timer));
  void look();
  return { now: () => void look() };
}
