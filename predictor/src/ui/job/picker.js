/** The line above the charts: the workers shown individually, and a list to select others. */

import { fill, h } from '../charts/dom.js';
import { SHOWN_MAX } from '../palette.js';
import { bySpeed, telling } from './chosen.js';

/** Number of workers above which the list can be searched. */
const SEARCH_FROM = 10;

/** Limit of workers in the list; the others are found by their name. */
const LISTED_MAX = 100;

/**
 * @param {import('./chosen.js').Chosen} chosen
 * @param {() => import('./history.js').History} history
 * @param {() => string[]} slow workers that are slow now
 */
export function picker(chosen, history, slow) {
  const chips = h('ul', { class: 'chips', 'aria-label': 'Workers shown individually' });
  const list = h('ul', { class: 'choices' });
  const search = h('input', { type: 'search', placeholder: 'Find a worker', 'aria-label': 'Find a worker', oninput: () => drawList() });
  const summary = h('summary', {}, 'Choose workers');
  const quick = h('div', { class: 'row' },
    h('button', { type: 'button', class: 'small', onclick: () => chosen.set(telling(history(), slow())) }, 'Most informative'),
    h('button', { type: 'button', class: 'small', onclick: () => chosen.set(bySpeed(history()).slice(0, SHOWN_MAX)) }, 'Slowest'),
    h('button', { type: 'button', class: 'small', onclick: () => chosen.set(bySpeed(history()).reverse().slice(0, SHOWN_MAX)) }, 'Fastest'));
  const details = h('details', { class: 'choose', ontoggle: () => drawList() }, summary, h('div', { class: 'card popup' }, h('p', { class: 'soft' }, `Up to ${SHOWN_MAX} at a time.`), quick, search, list));
  details.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== 'Escape' || !details.open) return;
    details.open = false;
    summary.focus();
  });

  function drawList() {
    if (!details.open) return;
    const known = [...history().workers.keys()];
    search.hidden = known.length < SEARCH_FROM;
    const wanted = search.value.toLowerCase();
    const focused = document.activeElement?.closest('label')?.dataset.worker;
    fill(list, known.filter((worker) => worker.toLowerCase().includes(wanted)).slice(0, LISTED_MAX).map((worker) => {
      const mark = chosen.mark(worker);
      const box = h('input', { type: 'checkbox', checked: mark != null, disabled: !mark && chosen.full });
      box.addEventListener('change', () => chosen.toggle(worker));
      return h('li', {}, h('label', { 'data-worker': worker }, box, badge(mark), worker));
    }));
    // The list was rebuilt: restore the focus.
    if (focused) [...list.querySelectorAll('label')].find((label) => label.dataset.worker === focused)?.querySelector('input')?.focus();
  }

  return {
    root: h('div', { class: 'picker' }, h('span', { class: 'soft' }, 'Shown:'), chips, details),
    draw() {
      const known = history().workers.size;
      details.hidden = known <= 1;
      fill(chips, chosen.workers.map((worker) => h('li', { class: 'chip', title: worker }, badge(chosen.mark(worker)), h('span', {}, worker))));
      drawList();
    },
  };
}

/** @param {import('../palette.js').Mark | undefined} mark */
export function badge(mark) {
  if (!mark) return null;
  const element = h('i', { class: 'mark' }, mark.letter);
  element.style.setProperty('--c', `var(${mark.colour})`);
  return element;
}
