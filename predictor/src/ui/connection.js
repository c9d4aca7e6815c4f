/** The connection state in the header: live, stale with its time, or refused; and the indicator next to it. */

import { fill, h, say, set } from './charts/dom.js';
import { clock } from './charts/format.js';

const light = /** @type {HTMLElement} */ (document.getElementById('light'));
const notice = /** @type {HTMLElement} */ (document.getElementById('notice'));
/** @type {ReturnType<typeof setInterval> | undefined} */
let ticking;

/**
 * Shows the state of a stream.
 * @param {import('./stream.js').StreamState} state
 * @param {() => void} [retry] reconnects immediately
 */
export function show(state, retry) {
  clearInterval(ticking);
  set(light, 'data-state', state.kind);
  set(document.body, 'data-stale', state.kind === 'stale');
  const words = { connecting: 'Connecting', live: 'Live', stale: 'Stale', refused: 'Not live' };
  say(/** @type {Element} */ (light.lastElementChild), words[state.kind]);
  if (state.kind !== 'stale') return fill(notice);
  // A view that has received nothing yet must not look empty.
  for (const waiting of document.querySelectorAll('.loading, .waiting')) say(waiting, `${state.why} Trying again`);
  // Screen readers only announce the sentence. They would announce the countdown every second.
  const countdown = h('span', { 'aria-hidden': 'true' });
  const tick = () => {
    const left = Math.ceil((state.retryAt - Date.now()) / 1000);
    say(countdown, left > 0 ? `Retrying in ${left} s.` : 'Retrying.');
  };
  tick();
  ticking = setInterval(tick, 1000);
  const sentence = `Stale since ${clock(state.since)}: ${state.why} The page shows the last known state.`;
  const shown = notice.querySelector('p')?.firstElementChild;
  if (shown?.textContent === sentence) return shown.parentElement?.replaceChild(countdown, /** @type {Node} */ (shown.nextElementSibling));
  fill(notice, h('div', { class: 'stale' }, h('p', {}, h('span', {}, sentence), countdown), h('button', { type: 'button', onclick: () => retry?.() }, 'Retry now')));
}

/** Hides the connection state, for a page without a connection. */
export function quiet() {
  clearInterval(ticking);
  set(light, 'data-state', 'live');
  set(document.body, 'data-stale', false);
  say(/** @type {Element} */ (light.lastElementChild), 'Ready');
  fill(notice);
}
