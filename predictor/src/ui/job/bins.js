/** Bins of a chart over time: about one per pixel, with minimum, median and maximum, and gaps where data are missing. */

/** @typedef {(number | null)[]} Column */

/** A pause between two points is a gap if it is this many times as long as usual and as the pauses beside it, and at least this long. If
 * the pauses beside it are alike, iterations are slow.
 */
const GAP_TIMES = 10;
const GAP_MIN_S = 5;

/** Points of a chart. A bin with no points is a gap. */
export class Bins {
  /** Times of the bins, in seconds since 1970. @type {number[]} */ at = [];
  /** The first and the last point of each bin; -1 for a gap. @type {[number, number][]} */ ranges = [];
  /** Whether a bin has several points. */ isBinned = false;

  /** Minimum, median and maximum of a column in each bin. @param {Column} column @returns {{ low: Column, middle: Column, high: Column }} */
  of(column) {
    /** @type {Column} */ const low = [];
    /** @type {Column} */ const middle = [];
    /** @type {Column} */ const high = [];
    for (const [first, last] of this.ranges) {
      const known = [];
      for (let index = first; index >= 0 && index <= last; index++) {
        const value = column[index];
        if (value != null) known.push(value);
      }
      if (known.length > 1) known.sort((a, b) => a - b);
      low.push(known[0] ?? null);
      middle.push(known[known.length >> 1] ?? null);
      high.push(known.at(-1) ?? null);
    }
    return { low, middle, high };
  }

  /** The last point of a bin; -1 for a gap. @param {number} bin */
  point(bin) {
    return this.ranges[bin]?.[1] ?? -1;
  }
}

/** Divides points into at most this number of bins of equal time. @param {number[]} at ascending @param {number} most */
export function binsOf(at, most) {
  const bins = new Bins();
  const apart = at.slice(1).map((time, index) => time - at[index]).sort((a, b) => a - b);
  const usual = apart[apart.length >> 1] ?? 0;
  const pauseBefore = (/** @type {number} */ index) => (index > 0 && index < at.length ? at[index] - at[index - 1] : 0);
  const isGap = (/** @type {number} */ index) => pauseBefore(index) > Math.max(GAP_MIN_S, GAP_TIMES * Math.max(usual, pauseBefore(index - 1), pauseBefore(index + 1)));
  const width = at.length > most ? (at[at.length - 1] - at[0]) / most : 0;
  let end = -Infinity;
  at.forEach((time, index) => {
    if (isGap(index)) {
      bins.at.push(time - pauseBefore(index) / 2);
      bins.ranges.push([-1, -2]);
      end = -Infinity;
    }
    if (time < end) {
      bins.ranges[bins.ranges.length - 1][1] = index;
      bins.isBinned = true;
    } else {
      bins.at.push(time);
      bins.ranges.push([index, index]);
      end = time + width;
    }
  });
  return bins;
}
