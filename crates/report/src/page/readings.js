/** The data of a chart as stored in the report, and their description as text. */

import { ROWS_MAX } from './figure.js';
import { number } from './format.js';

/**
 * The format that `data.rs` writes. Indices of names, categories and lanes start at 0.
 * @typedef {{ label: string, unit: string, zero: boolean, end?: number }} Axis
 * @typedef {{ kind: 'line', name: number, dashed: boolean, x: number, y: (number | null)[] }} LineMark `x`: index of its values of x.
 * @typedef {{ kind: 'points', name: number, x: number, y: number[] }} PointsMark
 * @typedef {{ kind: 'band', name: number, x: number, lower: (number | null)[], upper: (number | null)[] }} BandMark
 * @typedef {{ kind: 'area', name: number, x: number, y: (number | null)[], own: (number | null)[] }} AreaMark `y`: the upper edge; `own`: thickness of the part.
 * @typedef {{ kind: 'bars', name: number, bars: [number, number][] }} BarsMark The category and the value of each.
 * @typedef {[number, number, number, string, string]} Span Lane, start, end, label, and inner text.
 * @typedef {{ kind: 'spans', name: number, idle: boolean, spans: Span[] }} SpansMark
 * @typedef {{ kind: 'rule', label: string, axis: 'x' | 'y', at: number }} RuleMark
 * @typedef {LineMark | PointsMark | BandMark | AreaMark | BarsMark | SpansMark | RuleMark} Mark
 * @typedef {{ x: Axis, y: Axis, names: string[], categories: string[], lanes: string[], xs: number[][], marks: Mark[] }} Chart
 */

/** A value is shown if its distance from the pointer is at most this share of the chart's width. */
export const NEAR = 1 / 300;

/** @param {Axis} axis */
export const caption = ({ label, unit }) => (unit ? `${label} (${unit})` : label);
/** @param {Axis} axis @param {number} value */
export const reading = ({ label, unit }, value) => `${label} ${number(value, 4)} ${unit}`.trim();


/** Converts an axis of seconds to the unit that suits its largest value. @param {Chart} chart @param {'x' | 'y'} which */
export function suitUnit(chart, which) {
  const axis = chart[which];
  const largest = Math.max(...ends(values(chart, which)).map(Math.abs));
  if (axis.unit !== 's' || !(largest > 0 && largest < 1)) return;
  const [factor, unit] = largest < 1e-3 ? [1e6, 'µs'] : [1e3, 'ms'];
  axis.unit = unit;
  if (axis.end != null) axis.end *= factor;
  /** @param {(number | null)[]} column */
  const scale = (column) => column.forEach((value, index) => (column[index] = value == null ? null : value * factor));
  if (which === 'x') chart.xs.forEach(scale);
  for (const mark of chart.marks) {
    if (mark.kind === 'rule') mark.at *= mark.axis === which ? factor : 1;
    else if (mark.kind === 'spans') mark.spans.forEach((span) => which === 'x' && ([span[1], span[2]] = [span[1] * factor, span[2] * factor]));
    else if (which === 'y' && mark.kind === 'bars') mark.bars.forEach((bar) => (bar[1] *= factor));
    else if (which === 'y') ['y', 'own', 'lower', 'upper'].forEach((column) => scale(/** @type {any} */ (mark)[column] ?? []));
  }
}

/** Returns all values on an axis. @param {Chart} chart @param {'x' | 'y'} which @returns {number[]} */
export function values(chart, which) {
  const shown = chart.marks.flatMap((mark) => {
    if (mark.kind === 'rule') return mark.axis === which ? [mark.at] : [];
    if (mark.kind === 'spans') return which === 'x' ? mark.spans.flatMap(([, from, to]) => [from, to]) : [];
    if (mark.kind === 'bars') return which === 'y' ? mark.bars.map(([, value]) => value) : [];
    if (which === 'x') return chart.xs[mark.x];
    return (mark.kind === 'band' ? [...mark.lower, ...mark.upper] : mark.y).filter((value) => value != null);
  });
  return chart[which].zero ? [0, ...shown] : shown;
}

/** Minimum and maximum. @param {number[]} shown @returns {[number, number]} */
export const ends = (shown) => shown.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Returns the index of the value nearest to x, by binary search. @param {number[]} xs @param {number} x */
function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return x - xs[low] <= xs[high] - x ? low : high;
}

/** Returns the values of a name at x as text. @param {Chart} chart @param {number} name @param {number} x @param {number} near */
export function readingsAt(chart, name, x, near) {
  const found = [];
  for (const mark of chart.marks) {
    if (mark.kind === 'rule' || mark.kind === 'spans' || mark.name !== name) continue;
    if (mark.kind === 'bars') {
      found.push(...mark.bars.filter(([category]) => category === x).map(([, value]) => number(value, 4)));
      continue;
    }
    const place = nearest(chart.xs[mark.x], x);
    if (Math.abs(chart.xs[mark.x][place] - x) > near) continue;
    if (mark.kind === 'band' && mark.lower[place] != null) found.push(`${number(mark.lower[place], 4)} … ${number(mark.upper[place], 4)}`);
    else if (mark.kind === 'area' && mark.own[place] != null) found.push(number(mark.own[place], 4));
    else if ((mark.kind === 'line' || mark.kind === 'points') && mark.y[place] != null) found.unshift(number(mark.y[place], 4));
  }
  return found.join(', ');
}

/** Describes the span under the pointer. @param {Chart} chart @param {uPlot | undefined} plot */
export function spanAt(chart, plot) {
  const { left, top } = plot?.cursor ?? {};
  if (!plot || left == null || top == null || left < 0) return '';
  const [x, lane] = [plot.posToVal(left, 'x'), chart.lanes.length - 1 - Math.round(plot.posToVal(top, 'y'))];
  for (const mark of chart.marks) {
    const span = mark.kind === 'spans' ? mark.spans.find(([of, from, to]) => of === lane && from <= x && x <= to) : null;
    if (span && mark.kind === 'spans') return [chart.lanes[lane], chart.names[mark.name], span[3], `${number(span[1], 4)} … ${number(span[2], 4)} ${chart.x.unit}`].filter(Boolean).join(', ');
  }
  return '';
}

/** Returns the chart as a table. @param {Chart} chart @returns {import('./figure.js').Table} */
export function asTable(chart) {
  const { x, y, names, categories, lanes, marks, xs } = chart;
  const limits = marks.flatMap((mark) => (mark.kind === 'rule' ? [`${mark.label} (${reading(chart[mark.axis], mark.at)})`] : []));
  const note = (/** @type {number} */ shown, /** @type {number} */ all, /** @type {string} */ what) =>
    [shown < all ? `${shown} of ${all} ${what}.` : '', y.unit && !lanes.length ? `Values in ${y.unit}.` : '', limits.length ? `Marked: ${limits.join(', ')}.` : ''].filter(Boolean).join(' ');
  if (lanes.length) {
    const spans = marks.flatMap((mark) => (mark.kind === 'spans' ? mark.spans.map((span) => ({ what: names[mark.name], span })) : [])).sort((a, b) => a.span[1] - b.span[1]);
    const rows = spans.slice(0, ROWS_MAX).map(({ what, span: [lane, from, to, label] }) => [lanes[lane], [what, label].filter(Boolean).join(': '), number(from, 4), number(to, 4)]);
    return { head: [y.label, 'what', `from (${x.unit})`, `to (${x.unit})`], rows, note: note(rows.length, spans.length, 'intervals, the first') };
  }
  const all = categories.length ? categories.map((_, place) => place) : [...new Set(xs.flat())].sort((a, b) => a - b);
  const picked = all.filter((_, index) => all.length <= ROWS_MAX || Math.floor((index * ROWS_MAX) / all.length) !== Math.floor(((index - 1) * ROWS_MAX) / all.length));
  const near = categories.length ? 0 : ((all.at(-1) ?? 0) - (all[0] ?? 0)) * NEAR;
  const rows = picked.map((at) => [categories[at] ?? number(at, 4), ...names.map((_, name) => readingsAt(chart, name, at, near))]);
  return { head: [caption(x) || ' ', ...names], rows, note: note(rows.length, all.length, 'places, evenly chosen') };
}
