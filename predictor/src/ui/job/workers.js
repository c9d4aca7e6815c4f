/** The table of workers: slow ones first, then by finish time. With many workers, only the first are listed; the others are found by
 * their name.
 */

import { fill, h, say, set } from '../charts/dom.js';
import { clock, count, NONE, number, percent, plural, seconds, signed, speed } from '../charts/format.js';
import { whileVisible } from '../charts/frame.js';
import { overrideWords } from '../operator.js';
import { Sorting } from '../sorted.js';
import { badge } from './picker.js';

/** Shortest interval between two updates of the numbers, in milliseconds. */
const READ_MS = 300;
/** Forecast error above which a value is marked. */
const MISS = 0.1;
/** Number of workers that are listed at first, and after `Show more`. */
const ROWS = 6;
const ROWS_MAX = 200;

/** @type {Record<string, string>} */
const CAPS = { job: 'set by the job', worker: 'set by the worker', operator: 'set by an operator', peak_memory: 'fits in memory', out_of_memory: 'ran out of memory above' };
/** Likely causes of slowness. @type {Record<string, string>} */
export const SLOW = { thermal_throttling: 'GPU too hot', cpu_contention: 'waits for a core', loader_wait: 'waits for data', memory_pressure: 'short of memory', unknown: 'slow, cause unknown' };
/** Membership states. @type {Record<string, string>} */
export const STATES = { live: 'live', left: 'left', expired: 'lease expired' };

/** The address of a worker's page. @param {string} job @param {string} worker */
export const workerLink = (job, worker) => `#/jobs/${encodeURIComponent(job)}/workers/${encodeURIComponent(worker)}`;

/** The node of a worker: the part of its id before the slash. @param {string} worker */
export const nodeOf = (worker) => worker.split('/')[0];

export class WorkersTable {
  /** @type {any[]} */ #workers = [];
  /** @type {Map<string, any[]>} */ #cells = new Map();
  #more = false;
  #body = h('tbody', {});
  #gone = h('input', { type: 'checkbox', onchange: () => this.replace(this.#workers) });
  #goneLabel = h('label', { class: 'soft' }, this.#gone, ' Show departed workers');
  #search = h('input', { type: 'search', placeholder: 'Find a worker', 'aria-label': 'Find a worker or device', oninput: () => this.replace(this.#workers) });
  #button = h('button', { type: 'button', class: 'small', onclick: () => { this.#more = !this.#more; this.replace(this.#workers); } });
  #empty = h('p', { class: 'nodata waiting' }, 'Loading');
  #sorting = new Sorting(() => this.replace(this.#workers));
  #act;
  #job;

  /** @param {import('./charts.js').Job} job @param {(worker: any) => void} act opens the dialog for overrides of a worker */
  constructor(job, act) {
    this.#job = job;
    this.#act = act;
    this.operator = false;
    const columns = ['Worker', 'Device', 'Batch', 'Expected speed', 'Speed', 'Error', 'Waited', 'Cap', 'Slow or overridden'];
    this.#head = h('tr', {}, this.#sorting.heads(columns, (index) => index > 1 && index < 8), h('th', { scope: 'col', class: 'action' }, h('span', { class: 'unseen' }, 'Operator')));
    this.root = h('section', { class: 'card', 'aria-labelledby': 'workers-title' },
      h('div', { class: 'head' }, h('h2', { id: 'workers-title' }, 'Workers'), h('span', { class: 'row tools' }, this.#goneLabel, this.#search)),
      h('p', { class: 'how' }, 'Slow workers first, then by finish time in the latest iteration. Error: relative distance of actual from expected speed.'),
      h('div', { class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': 'Table of workers' }, h('table', {}, h('thead', {}, this.#head), this.#body)), this.#button, this.#empty);
    this.draw = whileVisible(this.root, () => this.#figures(), READ_MS);
  }
  #head;

  /** The workers that are slow now. @returns {string[]} */
  get slow() {
    return this.#workers.filter(({ straggler }) => straggler).sort((one, other) => one.straggler.speed_ratio - other.straggler.speed_ratio).map(({ worker }) => worker);
  }

  /** All workers. */
  get all() {
    return this.#workers;
  }

  /** @param {any[]} workers */
  replace(workers) {
    this.#workers = workers;
    const departed = workers.filter(({ state }) => state !== 'live').length;
    this.#goneLabel.hidden = !departed;
    const wanted = this.#search.value.trim().toLowerCase();
    const history = this.#job.history();
    const took = new Map(workers.map(({ worker }) => [worker, history.last(worker, 'compute_time_s') ?? -1]));
    const ratio = (/** @type {any} */ worker) => worker.straggler?.speed_ratio ?? 2;
    const order = (/** @type {any} */ a, /** @type {any} */ b) => ratio(a) - ratio(b) || (took.get(b.worker) ?? 0) - (took.get(a.worker) ?? 0) || (a.rank ?? Infinity) - (b.rank ?? Infinity);
    const live = workers.filter(({ state }) => state === 'live').length;
    const found = workers
      .filter(({ state }) => state === 'live' || this.#gone.checked || !live)
      .filter(({ worker, device }) => !wanted || worker.toLowerCase().includes(wanted) || device?.toLowerCase().includes(wanted));
    const last = (/** @type {(typeof import('./history.js').COLUMNS)[number]} */ name) => (/** @type {any} */ { worker }) => history.last(worker, name);
    const [expected, actual] = [last('predicted_samples_per_s'), last('actual_samples_per_s')];
    this.#sorting.apply(found, [
      ({ worker }) => worker, ({ device }) => device, last('local_batch'), expected, actual,
      (worker) => { const [of, was] = [expected(worker), actual(worker)]; return of && was != null ? Math.abs(was / of - 1) : null; },
      last('barrier_wait_s'), ({ cap }) => cap?.max_local_batch, ({ straggler }) => straggler?.speed_ratio,
    ], order);
    const shown = found.slice(0, this.#more ? ROWS_MAX : ROWS);
    this.#search.hidden = workers.length <= ROWS;
    this.#button.hidden = found.length <= ROWS;
    say(this.#button, this.#more ? `Show the first ${ROWS}` : `Show ${found.length > ROWS_MAX ? `the first ${ROWS_MAX} of ` : 'all '}${plural(found.length, 'worker')}`);
    this.#empty.hidden = shown.length > 0;
    this.#empty.classList.remove('waiting');
    say(this.#empty, workers.length ? 'No worker matches.' : 'No worker has joined yet.');
    set(this.#head.lastElementChild, 'hidden', !this.operator);
    this.#cells = new Map();
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.worker;
    fill(this.#body, shown.map((worker) => this.#row(worker)));
    // The rows were rebuilt: restore the focus.
    if (focused) [...this.#body.querySelectorAll('button')].find((button) => button.dataset.worker === focused)?.focus();
    this.draw(true);
  }

  /** @param {any} worker */
  #row(worker) {
    const cells = Array.from({ length: 5 }, () => h('td', { class: 'number' }));
    const mark = h('span', {});
    this.#cells.set(worker.worker, [worker.state === 'live' ? undefined : Infinity, mark, ...cells]);
    const wish = overrideWords(worker.override, this.#job.unit());
    const { straggler } = worker;
    return h('tr', { class: worker.state === 'live' ? null : 'departed' },
      h('th', { scope: 'row' }, mark, ' ', h('a', { href: workerLink(this.#job.id, worker.worker), title: worker.worker }, worker.worker), worker.state === 'live' ? h('span', { class: 'soft' }, ` rank ${worker.rank}`) : h('span', { class: 'pill' }, `${STATES[worker.state]}, ${clock(worker.last_seen_unix_ms)}`)),
      h('td', { class: 'device', title: worker.device ?? null }, worker.device ?? NONE),
      cells,
      h('td', { class: 'number' }, worker.cap ? [count(worker.cap.max_local_batch), h('span', { class: 'note' }, CAPS[worker.cap.because] ?? worker.cap.because)] : NONE),
      h('td', { class: 'reason' }, wish && h('span', { class: 'pill operator' }, wish), straggler ? [h('span', { class: 'pill slow' }, SLOW[straggler.reason] ?? straggler.reason), h('span', { class: 'soft' }, ` ${percent(straggler.speed_ratio, 0)} of its usual speed since iteration ${count(straggler.since_iteration)}${straggler.reason === 'unknown' ? '' : `: ${straggler.detail}`}`)] : wish ? null : NONE),
      h('td', { class: 'action', hidden: !this.operator }, this.operator && worker.state === 'live' && h('button', { type: 'button', class: 'small', 'data-worker': worker.worker, 'aria-label': `Change the override of ${worker.worker}`, onclick: () => this.#act(worker) }, 'Change')));
  }

  /** Updates the values that change in every iteration. */
  #figures() {
    const history = this.#job.history();
    for (const [worker, [back, mark, batch, predicted, actual, off, waited]] of this.#cells) {
      const known = this.#job.chosen.mark(worker);
      const look = known ? `${known.letter}${known.colour}` : '';
      if (mark.dataset.mark !== look) {
        mark.dataset.mark = look;
        fill(mark, badge(known));
      }
      const expected = history.last(worker, 'predicted_samples_per_s', back);
      const was = history.last(worker, 'actual_samples_per_s', back);
      const miss = expected && was != null ? was / expected - 1 : null;
      say(batch, number(history.last(worker, 'local_batch', back)));
      say(predicted, speed(expected));
      say(actual, speed(was));
      say(off, signed(miss));
      set(off, 'class', `number${miss != null && Math.abs(miss) > MISS ? ' off' : ''}`);
      say(waited, seconds(history.last(worker, 'barrier_wait_s', back)));
    }
  }
}
