/** The workers that are shown individually: all if there are few, otherwise the most informative ones until the user
 * selects others.
 */

import { markOf, SHOWN_MAX } from '../palette.js';

/** Number of workers that are shown individually by default if there are many. */
const UNASKED = 4;

export class Chosen {
  /** @type {string[]} */ #workers = [];
  #byHand = false;
  #key;
  /** @type {() => void} */ #changed;

  /** @param {string} job @param {() => void} changed */
  constructor(job, changed) {
    this.#key = `evenstep-chosen:${job}`;
    this.#changed = changed;
    try {
      const kept = JSON.parse(sessionStorage.getItem(this.#key) ?? 'null');
      if (Array.isArray(kept)) {
        this.#workers = kept.filter((worker) => typeof worker === 'string').slice(0, SHOWN_MAX);
        this.#byHand = true;
      }
    } catch {
      // No selection was stored.
    }
  }

  /** The selected workers in the order of their letters. */
  get workers() {
    return this.#workers;
  }

  /** Whether the limit of workers is reached. */
  get full() {
    return this.#workers.length >= SHOWN_MAX;
  }

  /** @param {string} worker */
  mark(worker) {
    const place = this.#workers.indexOf(worker);
    return place < 0 ? undefined : markOf(place);
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
    try {
      sessionStorage.setItem(this.#key, JSON.stringify(this.#workers));
    } catch {
      // Kept until the page is closed.
    }
    this.#changed();
  }

  /**
   * Selects workers as soon as there is data, unless the user has selected some.
   * @param {import('./history.js').History} history
   */
  propose(history) {
    const known = [...history.workers.keys()];
    if (this.#byHand ? this.#workers.some((worker) => known.includes(worker)) : this.#workers.length) return;
    this.#workers = known.length <= SHOWN_MAX ? known : telling(history);
    if (this.#workers.length) this.#changed();
  }
}

/** The slowest and the fastest worker, and those with the largest forecast errors. @param {import('./history.js').History} history */
export function telling(history) {
  const workers = [...history.workers].map(([worker, columns]) => {
    let miss = 0;
    let points = 0;
    columns.actual_samples_per_s.forEach((actual, index) => {
      const predicted = columns.predicted_samples_per_s[index];
      if (actual == null || !predicted) return;
      miss += Math.abs(actual / predicted - 1);
      points++;
    });
    return { worker, speed: history.last(worker, 'actual_samples_per_s') ?? 0, miss: points ? miss / points : 0 };
  });
  const live = workers.filter(({ speed }) => speed > 0).sort((a, b) => a.speed - b.speed);
  const picked = new Set([live[0], live.at(-1)].filter((found) => found != null).map(({ worker }) => worker));
  for (const { worker } of live.toSorted((a, b) => b.miss - a.miss)) {
    if (picked.size >= UNASKED) break;
    picked.add(worker);
  }
  return [...picked];
}
