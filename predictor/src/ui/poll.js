/** Updates of pages without a stream: reads a path at an interval, and shows when the data is stale. */

import { read, Refused } from './api.js';
import { show } from './connection.js';

/**
 * Reads a path at an interval until `signal` is aborted.
 * @param {string | (() => string)} path @param {number} everyMs @param {(data: any) => void} onData @param {AbortSignal} signal
 * @param {(error: Refused) => void} onRefused called for an error that a retry cannot resolve
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
