/** Tables whose columns sort: a button in each heading. */

import { h, set } from './charts/dom.js';

/** Sorts by a column, or in the order of the table. */
export class Sorting {
  /** @type {number | null} */ #column = null;
  #descending = true;
  #changed;
  /** @type {any[]} */ #heads = [];

  /** @param {() => void} changed */
  constructor(changed) {
    this.#changed = changed;
  }

  /** Headings with buttons. @param {string[]} columns @param {(index: number) => boolean} isNumber */
  heads(columns, isNumber) {
    this.#heads = columns.map((name, index) => h('th', { scope: 'col', class: isNumber(index) ? 'number' : null },
      h('button', { type: 'button', class: 'sort', onclick: () => this.#choose(index, isNumber(index)) }, name)));
    this.#show();
    return this.#heads;
  }

  /** The first press sorts by the largest number or the first word, the second in reverse, the third as before. @param {number} index @param {boolean} isNumber */
  #choose(index, isNumber) {
    if (this.#column !== index) [this.#column, this.#descending] = [index, isNumber];
    else if (this.#descending === isNumber) this.#descending = !isNumber;
    else this.#column = null;
    this.#show();
    this.#changed();
  }

  #show() {
    this.#heads.forEach((head, index) => set(head, 'aria-sort', index !== this.#column ? null : this.#descending ? 'descending' : 'ascending'));
  }

  /** Sorted rows; unknown values are last. @template T @param {T[]} rows @param {((row: T) => any)[]} values of the columns @param {(one: T, other: T) => number} usual the order of the table */
  apply(rows, values, usual) {
    const value = this.#column == null ? null : values[this.#column];
    if (!value) return rows.sort(usual);
    const sign = this.#descending ? -1 : 1;
    return rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a == null || b == null) return Number(a == null) - Number(b == null) || usual(one, other);
      return (a < b ? -sign : a > b ? sign : 0) || usual(one, other);
    });
  }
}
