/** The log of a job: changes of the plan, and workers that joined or left. */

import { fill, h, say } from '../charts/dom.js';
import { clock, moment, plural } from '../charts/format.js';

/** Limit of entries, the same as in the service. */
const ENTRIES_MAX = 500;
/** Number of entries shown by default. */
const SHOWN = 40;
/** Colours of events on time axes. Changes of the shares are too many. @type {Record<string, string>} */
const COLOURS = { joined: '--c2', left: '--c5', expired: '--c1', out_of_memory: '--c1', override: '--c3', changed: '--c3', slow: '--c1', recovered: '--c2' };

/** Kinds of decisions, in words. @type {Record<string, string>} */
const DECISIONS = { cold_start: 'First shares', profiling: 'Profiling', rebalanced: 'Shares changed', held: 'Shares unchanged' };

/** Name and sign of each kind. @type {Record<string, [string, string]>} */
const KINDS = {
  reallocated: ['Shares changed', '⇄'],
  joined: ['Joined', '+'],
  left: ['Left', '−'],
  expired: ['Lease expired', '∅'],
  out_of_memory: ['Out of memory', '!'],
  override: ['Operator', '☝'],
  changed: ['Options changed', '✎'],
  refitted: ['Models fitted', '∿'],
  slow: ['Slow worker', '▼'],
  recovered: ['Not slow any more', '▲'],
};

export class DecisionLog {
  /** @type {any[]} */ #entries = [];
  #all = false;
  #decision = h('p', { class: 'decision' });
  #list = h('ol', { class: 'log', tabindex: 0, 'aria-label': 'Decisions and events' });
  #more = h('button', { type: 'button', class: 'small', hidden: true, onclick: () => this.#open() }, 'Show all');
  root = h('section', { class: 'card', 'aria-labelledby': 'log-title' },
    h('div', { class: 'head' }, h('h2', { id: 'log-title' }, 'Decisions and events')),
    h('p', { class: 'how' }, 'Newest first. Marks on the time axes: changes of workers, overrides and options.'),
    this.#decision, this.#list, this.#more);

  /** The events for time axes. @returns {import('../charts/line.js').Event[]} */
  events() {
    return this.#entries.filter(({ kind }) => COLOURS[kind]).map(({ at_unix_ms: at, kind }) => ({ at: at / 1000, colour: COLOURS[kind] }));
  }

  /** @param {any[]} entries oldest first */
  replace(entries) {
    this.#entries = entries.slice(-ENTRIES_MAX);
    this.#draw();
  }

  /** @param {any} entry */
  add(entry) {
    this.replace([...this.#entries, entry]);
  }

  /** Shows the latest decision, which is an entry only if it changed the shares. @param {string | undefined} kind @param {string} [reason] */
  decided(kind, reason) {
    if (kind) say(this.#decision, `${DECISIONS[kind] ?? kind}: ${reason}`);
  }

  #open() {
    this.#all = !this.#all;
    this.#draw();
  }

  #draw() {
    const shown = this.#all ? this.#entries : this.#entries.slice(-SHOWN);
    fill(this.#list, shown.toReversed().map(line));
    this.#more.hidden = this.#entries.length <= SHOWN;
    this.#more.textContent = this.#all ? `Show the latest ${SHOWN}` : `Show all ${plural(this.#entries.length, 'entry', 'entries')}`;
    if (!shown.length) fill(this.#list, h('li', { class: 'nodata' }, 'No entries since this predictor owns the job.'));
  }
}

/** @param {any} entry */
function line(entry) {
  const [name, sign] = KINDS[entry.kind] ?? [entry.kind, '·'];
  const today = new Date(entry.at_unix_ms).toDateString() === new Date().toDateString();
  return h('li', { 'data-kind': entry.kind },
    h('i', { class: 'sign', 'aria-hidden': 'true' }, sign),
    h('div', {}, h('p', { class: 'when' }, h('b', {}, name), h('time', { datetime: new Date(entry.at_unix_ms).toISOString() }, (today ? clock : moment)(entry.at_unix_ms)),
      entry.iteration == null ? null : h('span', {}, `iteration ${entry.iteration}`)), h('p', {}, entry.text)));
}
