/** The table of workers: samples, forecast error, cap, and the reason if a worker is slow. */

import { fill, h, say, set } from '../charts/dom.js';
import { count, NONE, number, seconds, signed, speed } from '../charts/format.js';
import { whileVisible } from '../charts/frame.js';
import { overrideWords } from '../operator.js';
import { badge } from './picker.js';

/** Shortest interval between two updates of the numbers, in milliseconds. */
const READ_MS = 300;
/** Forecast error above which a value is marked. */
const MISS = 0.1;

/** @type {Record<string, string>} */
const CAPS = { job: 'set by the job', worker: 'set by the worker', operator: 'set by an operator', peak_memory: 'fits in memory', out_of_memory: 'ran out of memory above' };
/** @type {Record<string, string>} */
const SLOW = { thermal_throttling: 'GPU too hot', cpu_contention: 'Other processes use its cores', loader_wait: 'Waits for data', memory_pressure: 'Short of memory', unknown: 'Slow, cause unknown' };
/** @type {Record<string, string>} */
const STATES = { live: 'live', left: 'left', expired: 'lease expired' };

export class WorkersTable {
  /** @type {any[]} */ #workers = [];
  /** @type {Map<string, any[]>} */ #cells = new Map();
  #body = h('tbody', {});
  #gone = h('input', { type: 'checkbox', onchange: () => this.replace(this.#workers) });
  #goneLabel = h('label', { class: 'soft' }, this.#gone, ' Show departed workers');
  #empty = h('p', { class: 'nodata' }, 'No worker has joined yet.');
  #act;
  #job;

  /** @param {import('./charts.js').Job} job @param {(worker: any) => void} act opens the dialog for overrides of a worker */
  constructor(job, act) {
    this.#job = job;
    this.#act = act;
    this.operator = false;
    const columns = ['Worker', 'Runs on', 'Samples', 'Predicted', 'Actual', 'Error', 'Waited', 'Cap', 'Straggler or override'];
    this.#head = h('tr', {}, columns.map((name, index) => h('th', { scope: 'col', class: index > 1 && index < 8 ? 'number' : null }, name)), h('th', { scope: 'col', class: 'action' }, h('span', { class: 'unseen' }, 'Operator')));
    this.root = h('section', { class: 'card', 'aria-labelledby': 'workers-title' },
      h('div', { class: 'head' }, h('h2', { id: 'workers-title' }, 'Workers'), this.#goneLabel),
      h('p', { class: 'how' }, 'Samples: local batch in the latest iteration. Error: relative distance of actual from predicted speed.'),
      h('div', { class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': 'Table of workers' }, h('table', {}, h('thead', {}, this.#head), this.#body)), this.#empty);
    this.draw = whileVisible(this.root, () => this.#figures(), READ_MS);
  }
  #head;

  /** @param {any[]} workers */
  replace(workers) {
    this.#workers = workers;
    const departed = workers.filter(({ state }) => state !== 'live').length;
    this.#goneLabel.hidden = !departed;
    const shown = workers.filter(({ state }) => state === 'live' || this.#gone.checked).sort((a, b) => (a.rank ?? Infinity) - (b.rank ?? Infinity));
    this.#empty.hidden = shown.length > 0;
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
    this.#cells.set(worker.worker, [mark, ...cells]);
    const wish = overrideWords(worker.override);
    return h('tr', { class: worker.state === 'live' ? null : 'departed' },
      h('th', { scope: 'row' }, mark, ' ', worker.worker, worker.state === 'live' ? h('span', { class: 'soft' }, ` rank ${worker.rank}`) : h('span', { class: 'pill' }, STATES[worker.state])),
      h('td', { class: 'device', title: worker.device ?? null }, worker.device ?? NONE),
      cells,
      h('td', { class: 'number' }, worker.cap ? [count(worker.cap.max_local_batch), h('span', { class: 'note' }, CAPS[worker.cap.because] ?? worker.cap.because)] : NONE),
      h('td', { class: 'reason' }, wish && h('span', { class: 'pill operator' }, wish), worker.straggler ? [h('b', {}, SLOW[worker.straggler.reason] ?? worker.straggler.reason), h('span', { class: 'note' }, `${number(worker.straggler.speed_ratio * 100, 2)} % of the expected speed since iteration ${worker.straggler.since_iteration}: ${worker.straggler.detail}`)] : wish ? null : NONE),
      h('td', { class: 'action', hidden: !this.operator }, worker.state === 'live' && h('button', { type: 'button', class: 'small', 'data-worker': worker.worker, 'aria-label': `Change the override of ${worker.worker}`, onclick: () => this.#act(worker) }, 'Change')));
  }

  /** Updates the values that change in every iteration. */
  #figures() {
    const history = this.#job.history();
    for (const [worker, [mark, batch, predicted, actual, off, waited]] of this.#cells) {
      const known = this.#job.chosen.mark(worker);
      if (mark.dataset.mark !== (known?.letter ?? '')) {
        mark.dataset.mark = known?.letter ?? '';
        fill(mark, badge(known));
      }
      const expected = history.last(worker, 'predicted_samples_per_s');
      const was = history.last(worker, 'actual_samples_per_s');
      const miss = expected && was != null ? was / expected - 1 : null;
      say(batch, number(history.last(worker, 'local_batch')));
      say(predicted, speed(expected));
      say(actual, speed(was));
      say(off, signed(miss));
      set(off, 'class', `number${miss != null && Math.abs(miss) > MISS ? ' off' : ''}`);
      say(waited, seconds(history.last(worker, 'barrier_wait_s')));
    }
  }
}
