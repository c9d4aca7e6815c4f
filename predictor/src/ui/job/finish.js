/** Actual and expected finish times of each worker in the latest iteration, as bars that should end together. */

import { h, say, set } from '../charts/dom.js';
import { seconds } from '../charts/format.js';

/** @typedef {import('../palette.js').Mark} Mark */
/** @typedef {{ at: number | null | undefined, label: string, kind: string }} Rule */

/** Number of workers up to which rows are thick. */
const FEW = 6;
/** Number of workers from which rows are thin and only workers with a letter are named. */
const THIN_FROM = 14;

/** The rows. Elements are kept: a new iteration only changes widths. */
export class FinishBars {
  #rows = h('ol', { class: 'finish-rows' });
  #rules = h('div', { class: 'finish-rules', 'aria-hidden': 'true' });
  /** @type {Map<string, HTMLElement>} */
  #known = new Map();

  /** @param {HTMLElement} host */
  constructor(host) {
    host.classList.add('finish');
    host.append(this.#rows, this.#rules);
  }

  /**
   * @param {{ worker: string, compute_time_s?: number, predicted_compute_time_s?: number }[]} workers
   * @param {Rule[]} rules
   * @param {(worker: string) => Mark | undefined} mark
   */
  show(workers, rules, mark) {
    const times = workers.flatMap((worker) => [worker.compute_time_s ?? 0, worker.predicted_compute_time_s ?? 0]);
    const longest = Math.max(...times, ...rules.map((rule) => rule.at ?? 0)) * 1.04 || 1;
    const part = (/** @type {number | null | undefined} */ time) => `${((time ?? 0) / longest) * 100}%`;
    const order = workers.map(({ worker }) => worker).join('\n');
    if (this.#rows.dataset.order !== order) {
      this.#rows.dataset.order = order;
      this.#known = new Map(workers.map(({ worker }) => [worker, row(worker)]));
      this.#rows.replaceChildren(...this.#known.values());
      this.#rows.classList.toggle('few', workers.length <= FEW);
      this.#rows.classList.toggle('thin', workers.length >= THIN_FROM);
    }
    for (const { worker, compute_time_s: took, predicted_compute_time_s: expected } of workers) {
      const element = /** @type {HTMLElement} */ (this.#known.get(worker));
      const [name, track] = /** @type {any} */ (element.children);
      const known = mark(worker);
      element.style.setProperty('--c', `var(${known?.colour ?? '--other'})`);
      set(element, 'data-marked', known != null);
      say(name.firstElementChild, known?.letter ?? '');
      const [bar, ghost, words] = track.children;
      bar.style.setProperty('width', part(took));
      ghost.style.setProperty('width', part(expected));
      ghost.hidden = expected == null;
      say(words, `finished after ${seconds(took)}, expected ${seconds(expected)}`);
      set(element, 'title', `${worker}: finished after ${seconds(took)}, expected ${seconds(expected)}`);
    }
    const lines = rules.filter((rule) => rule.at != null);
    while (this.#rules.children.length < lines.length) this.#rules.append(h('i', {}, h('span', {})));
    while (this.#rules.children.length > lines.length) this.#rules.lastChild?.remove();
    lines.forEach((rule, index) => {
      const line = /** @type {HTMLElement} */ (this.#rules.children[index]);
      set(line, 'class', `${rule.kind}${(rule.at ?? 0) > longest * 0.7 ? ' west' : ''}`);
      line.style.setProperty('left', part(rule.at));
      say(/** @type {Element} */ (line.firstElementChild), `${rule.label} ${seconds(rule.at)}`);
    });
  }
}

/** @param {string} worker */
function row(worker) {
  return h('li', {}, h('span', { class: 'finish-name' }, h('i', { class: 'mark' }), h('span', {}, worker)), h('span', { class: 'finish-track' }, h('i', { class: 'took' }), h('i', { class: 'expected' }), h('span', { class: 'unseen' })));
}
