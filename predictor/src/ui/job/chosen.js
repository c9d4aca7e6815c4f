/** The workers that are shown individually: all if there are few, otherwise the slow ones, the slowest and the fastest until the user
 * selects others. The address of the page names a selection, so that it can be shared.
 */

import { markOf, SHOWN_MAX } from '../palette.js';
import { queryOf, setQuery } from './range.js';

/** Number of workers that are shown individually by default if there are many. */
const UNASKED = 4;

export class Chosen {
  /** @type {string[]} */ #workers = [];
  /** Positions of colours. @type {Map<string, number>} */ #places = new Map();
  #byHand = false;
  /** What the latest proposal depends on. */ #basis = '';
  /** @type {() => void} */ #changed;

  /** @param {() => void} changed @param {string[]} [workers] the workers, if the address does not name them */
  constructor(changed, workers) {
    this.#changed = changed;
    const asked = workers ?? queryOf(location.hash).get('workers')?.split(',');
    if (!asked) return;
    this.#workers = asked.slice(0, SHOWN_MAX);
    this.#byHand = true;
  }

  /** The selected workers. */
  get workers() {
    return this.#workers;
  }

  /** Whether the limit of workers is reached. */
  get full() {
    return this.#workers.length >= SHOWN_MAX;
  }

  /** @param {string} worker */
  mark(worker) {
    const place = this.#places.get(worker);
    return place == null ? undefined : markOf(place);
  }

  /** @param {string} worker */
  toggle(worker) {
    const without = this.#workers.filter((other) => other !== worker);
    this.set(without.length < this.#workers.length ? without : [...without, worker].slice(-SHOWN_MAX));
  }

  /** @param {string[]} workers */
  set(workers) {
    this.#byHand = true;
    this.#workers = workers.slice(0, SHOWN_MAX);
    const asked = queryOf(location.hash);
    asked.set('workers', this.#workers.join(','));
    setQuery(asked);
    this.#changed();
  }

  /**
   * Selects workers as soon as there is data and when other workers are slow, unless the user has selected some.
   * @param {import('./history.js').History} history @param {string[]} slow workers that are slow now
   */
  propose(history, slow) {
    const known = [...history.workers.keys()];
    const few = known.length <= SHOWN_MAX;
    const basis = (few ? known : slow.toSorted()).join(' ');
    if (this.#byHand ? !this.#workers.some((worker) => known.includes(worker)) : !this.#workers.length || basis !== this.#basis) {
      this.#basis = basis;
      this.#workers = few ? known : telling(history, slow);
      if (this.#workers.length) this.#changed();
    }
    this.#paint(known);
  }

  /**
   * Gives each selected worker a colour. It depends on the position of the worker among all, so that it is the same on every visit;
   * if two selected workers would have the same, the second gets the next free one.
   * @param {string[]} known
   */
  #paint(known) {
    const order = known.toSorted();
    const positions = new Map(order.map((worker, index) => [worker, index]));
    const taken = new Set();
    this.#places = new Map();
    for (const worker of this.#workers.toSorted()) {
      let place = (positions.get(worker) ?? 0) % SHOWN_MAX;
      while (taken.has(place)) place = (place + 1) % SHOWN_MAX;
      taken.add(place);
      this.#places.set(worker, place);
    }
  }
}

/** The workers that are slow now, the slowest and the fastest. @param {import('./history.js').History} history @param {string[]} slow */
export function telling(history, slow) {
  const speeds = bySpeed(history);
  const picked = new Set([...slow.filter((worker) => history.workers.has(worker)).slice(0, UNASKED - 1), speeds[0], speeds.at(-1), speeds[speeds.length >> 1], speeds[1]].filter((worker) => worker != null));
  return [...picked].slice(0, UNASKED);
}

/** Workers by speed, slowest first. @param {import('./history.js').History} history */
export function bySpeed(history) {
  const speed = (/** @type {string} */ worker) => history.last(worker, 'actual_samples_per_s') ?? Infinity;
  return [...history.workers.keys()].filter((worker) => Number.isFinite(speed(worker))).sort((a, b) => speed(a) - speed(b));
}
