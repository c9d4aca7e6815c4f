/** Finish times of the workers in the latest iteration, as bars that should end together. Up to a dozen workers have a bar each. Of
 * more, the exceptional ones have, and the others are grouped into bands of similar finish times.
 */

import { h, say, set } from '../charts/dom.js';
import { count, seconds } from '../charts/format.js';

/** @typedef {import('../palette.js').Mark} Mark */
/** @typedef {{ at: number | null | undefined, label: string, kind: string }} Rule */
/** @typedef {{ worker: string, local_batch?: number, samples?: number, compute_time_s?: number, predicted_compute_time_s?: number }} Worker */
/** A bar: a worker, or a band of workers. @typedef {{ key: string, name: string, took: number, claimed: number, expected: number | null, low: number, high: number, worker?: string, count: number }} Row */

/** Number of workers up to which rows are thick. */
const FEW = 6;
/** Number of workers up to which each has a bar. */
const SINGLE = 12;
/** Limit of exceptional workers with a bar. */
const EXCEPTIONS_MAX = 6;
/** Finish time over the median of all from which a worker is exceptional. */
const EXCEPTIONAL = 1.15;
/** Quantiles that bound the bands, slowest first. */
const BANDS = [1, 0.95, 0.75, 0.5, 0.25, 0.05, 0];

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
   * @param {Worker[]} workers
   * @param {Rule[]} rules
   * @param {(worker: string) => Mark | undefined} mark
   * @param {boolean} together whether all workers are expected to finish together, because they claim samples on demand
   */
  show(workers, rules, mark, together) {
    const rows = workers.length <= SINGLE ? workers.map((worker) => single(worker, together)).sort(slowerFirst) : grouped(workers, mark, together);
    // A single very slow worker must not make all the other bars short: its bar is cut.
    const ends = rows.map((row) => row.high).sort((a, b) => a - b);
    const usual = Math.max(ends[ends.length >> 1] * 2, ...rules.map((rule) => rule.at ?? 0));
    const longest = Math.min(Math.max(...ends, ...rows.map((row) => row.expected ?? 0), ...rules.map((rule) => rule.at ?? 0)), usual) * 1.04 || 1;
    const part = (/** @type {number | null | undefined} */ time) => `${Math.min(1, (time ?? 0) / longest) * 100}%`;
    const order = rows.map(({ key }) => key).join('\n');
    if (this.#rows.dataset.order !== order) {
      this.#rows.dataset.order = order;
      this.#known = new Map(rows.map((row) => [row.key, this.#known.get(row.key) ?? element(row)]));
      this.#rows.replaceChildren(...this.#known.values());
      this.#rows.classList.toggle('few', rows.length <= FEW);
    }
    for (const row of rows) this.#update(row, part, longest, row.worker ? mark(row.worker) : undefined);
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

  /** @param {Row} row @param {(time: number | null | undefined) => string} part @param {number} longest @param {Mark | undefined} known */
  #update(row, part, longest, known) {
    const item = /** @type {HTMLElement} */ (this.#known.get(row.key));
    const [name, track, value] = /** @type {any} */ (item.children);
    item.style.setProperty('--c', `var(${known?.colour ?? '--other'})`);
    set(item, 'data-marked', known != null);
    set(item, 'data-cut', row.took > longest);
    say(name.firstElementChild, known?.letter ?? '');
    say(name.lastElementChild, row.name);
    const [bar, claimed, range, ghost] = track.children;
    bar.style.setProperty('width', part(row.took));
    claimed.style.setProperty('left', part(row.took - row.claimed));
    claimed.style.setProperty('width', `calc(${part(row.took)} - ${part(row.took - row.claimed)})`);
    claimed.hidden = !row.claimed;
    range.hidden = row.count === 1;
    range.style.setProperty('left', part(row.low));
    range.style.setProperty('width', `calc(${part(row.high)} - ${part(row.low)})`);
    ghost.style.setProperty('width', part(row.expected));
    ghost.hidden = row.expected == null;
    say(value, seconds(row.took));
    const words = row.count === 1 ? `finished after ${seconds(row.took)}` : `finished after ${seconds(row.low)} to ${seconds(row.high)}, half of them after ${seconds(row.took)}`;
    set(item, 'title', `${row.name}: ${words}${row.expected == null ? '' : `, expected ${seconds(row.expected)}`}`);
  }
}

/** @param {Worker} worker @param {boolean} together @returns {Row} */
function single(worker, together) {
  const took = worker.compute_time_s ?? 0;
  const extra = worker.samples && worker.local_batch != null ? Math.max(0, worker.samples - worker.local_batch) / worker.samples : 0;
  return { key: worker.worker, name: worker.worker, worker: worker.worker, took, claimed: took * extra, expected: together ? null : (worker.predicted_compute_time_s ?? null), low: took, high: took, count: 1 };
}

/** @param {Row} a @param {Row} b */
const slowerFirst = (a, b) => b.took - a.took || (a.key < b.key ? -1 : 1);

/** The exceptional and the selected workers, and bands of the others, slowest first. @param {Worker[]} workers @param {(worker: string) => Mark | undefined} mark @param {boolean} together */
function grouped(workers, mark, together) {
  const rows = workers.filter((worker) => worker.compute_time_s != null).map((worker) => single(worker, together)).sort(slowerFirst);
  const middle = rows[rows.length >> 1]?.took ?? 0;
  const exceptions = new Set(rows.filter((row) => row.took > EXCEPTIONAL * middle).slice(0, EXCEPTIONS_MAX));
  for (const row of rows) if (row.worker && mark(row.worker)) exceptions.add(row);
  const others = rows.filter((row) => !exceptions.has(row));
  const place = (/** @type {number} */ quantile) => Math.round((1 - quantile) * others.length);
  const bands = BANDS.slice(1).map((low, index) => band(others.slice(place(BANDS[index]), place(low)), index));
  return [...exceptions, ...bands.filter((row) => row != null)].sort(slowerFirst);
}

/** @param {Row[]} rows @param {number} index @returns {Row | null} */
function band(rows, index) {
  if (!rows.length) return null;
  const expected = rows.flatMap((row) => row.expected ?? []).sort((a, b) => a - b);
  return {
    key: `band ${index}`,
    name: `${count(rows.length)} ${rows.length === 1 ? 'worker' : 'workers'}`,
    took: rows[rows.length >> 1].took,
    claimed: 0,
    expected: expected[expected.length >> 1] ?? null,
    low: rows[rows.length - 1].took,
    high: rows[0].took,
    count: rows.length,
  };
}

/** @param {Row} row */
function element(row) {
  return h('li', { 'data-worker': row.worker ?? null, class: row.worker ? null : 'band' },
    h('span', { class: 'finish-name' }, h('i', { class: 'mark' }), h('span', {}, row.name)),
    h('span', { class: 'finish-track' }, h('i', { class: 'took' }), h('i', { class: 'claimed' }), h('i', { class: 'spread' }), h('i', { class: 'expected' })),
    h('b', { class: 'finish-value' }));
}
