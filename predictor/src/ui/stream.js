/** Server-sent events with reconnection. They are parsed here rather than by EventSource for three reasons: comments
 * count as signs of life, an error response has its reason, and the pauses between attempts can be set.
 */

import { Refused, refusal } from './api.js';

/** Longest time without an event or comment, in milliseconds. The service sends at least one every 5 s. */
const SILENCE_MS = 12_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
/** Size limit of an event, in characters. */
const EVENT_MAX = 16 * 1024 * 1024;

/**
 * State of a stream. `stale`: it was lost at `since` and reconnects at `retryAt`. `refused`: it does not reconnect.
 * @typedef {{ kind: 'connecting' } | { kind: 'live' } | { kind: 'stale', since: number, retryAt: number, why: string } | { kind: 'refused', why: Refused }} StreamState
 */

/**
 * Follows a stream until `signal` is aborted.
 * @param {string} path
 * @param {{ onEvent: (name: string, data: any) => void, onOpen?: () => void, onState: (state: StreamState) => void, eventsOnly?: boolean }} hooks
 *   `onOpen` is called after each connection: read again what may have changed in between. `eventsOnly`: events arrive
 *   regularly, so that the page is stale if only comments arrive.
 * @param {AbortSignal} signal
 * @returns {{ retry: () => void }} reconnects immediately
 */
export function listen(path, { onEvent, onOpen, onState, eventsOnly = false }, signal) {
  let wake = () => {};
  const run = async () => {
    let pause = FIRST_PAUSE_MS;
    let heard = Date.now();
    onState({ kind: 'connecting' });
    while (!signal.aborted) {
      let why = 'The connection ended.';
      try {
        await once(path, signal, eventsOnly, onEvent, () => {
          pause = FIRST_PAUSE_MS;
          onState({ kind: 'live' });
          onOpen?.();
        }, () => (heard = Date.now()));
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Refused) {
          if (error.status && error.status < 500 && error.status !== 429) return onState({ kind: 'refused', why: error });
          why = error.message;
        } else {
          why = 'The connection was lost.';
        }
      }
      if (signal.aborted) return;
      const wait = pause * (0.75 + Math.random() / 2);
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
      onState({ kind: 'stale', since: heard, retryAt: Date.now() + wait, why });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, wait);
        wake = () => {
          clearTimeout(timer);
          resolve(undefined);
        };
      });
    }
  };
  void run();
  signal.addEventListener('abort', () => wake());
  return { retry: () => wake() };
}

/** The data of the first event of a kind in a stream. @param {string} path @param {string} kind @param {AbortSignal} signal @returns {Promise<any>} */
export async function first(path, kind, signal) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener('abort', stop);
  try {
    return await new Promise((resolve, reject) => {
      once(path, own.signal, true, (name, data) => name === kind && resolve(data), () => {}, () => {}).then(() => reject(new Refused(0, 'silent', 'The connection ended.')), reject);
    });
  } finally {
    stop();
    signal.removeEventListener('abort', stop);
  }
}

/**
 * One connection, until it ends or times out.
 * @param {string} path @param {AbortSignal} signal @param {boolean} eventsOnly @param {(name: string, data: any) => void} onEvent
 * @param {() => void} opened @param {() => void} heard
 */
async function once(path, signal, eventsOnly, onEvent, opened, heard) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener('abort', stop);
  let alarm = setTimeout(stop, SILENCE_MS);
  const alive = () => {
    heard();
    clearTimeout(alarm);
    alarm = setTimeout(stop, SILENCE_MS);
  };
  try {
    const response = await fetch(new URL(path, document.baseURI), {
      headers: { accept: 'text/event-stream' },
      signal: own.signal,
      redirect: 'manual',
      cache: 'no-store',
    }).catch((error) => {
      if (own.signal.aborted) throw error;
      throw new Refused(0, 'silent', 'The predictor does not respond.');
    });
    if (response.type === 'opaqueredirect') throw new Refused(307, 'elsewhere', 'Another predictor serves this job.');
    if (!response.ok || !response.body) throw await refusal(response);
    alive();
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = parser((name, data) => {
      alive();
      onEvent(name, data);
    });
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (!eventsOnly) alive();
      parse(value);
    }
  } finally {
    clearTimeout(alarm);
    signal.removeEventListener('abort', stop);
  }
}

/**
 * A parser that accepts text in pieces of any size and calls `onEvent` for each complete event.
 * @param {(name: string, data: any) => void} onEvent
 * @returns {(text: string) => void}
 */
export function parser(onEvent) {
  let rest = '';
  let name = 'message';
  /** @type {string[]} */
  let data = [];
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r/);
    rest = lines.pop() ?? '';
    if (rest.length > EVENT_MAX) throw new Refused(0, 'too-large', 'An event exceeds the size limit.');
    for (const line of lines) {
      if (line === '') {
        if (data.length) onEvent(name, JSON.parse(data.join('\n')));
        name = 'message';
        data = [];
      } else if (!line.startsWith(':')) {
        const colon = line.indexOf(':');
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
        if (field === 'event') name = value;
        else if (field === 'data') data.push(value);
      }
    }
  };
}
