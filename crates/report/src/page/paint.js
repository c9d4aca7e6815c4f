/** Drawing of marks that uPlot does not support: bars side by side, spans in lanes, rules, points, and their labels. */

import { colour } from './colours.js';
import { number } from './format.js';
import { FONT } from './line.js';

/** @typedef {import('./readings.js').Chart} Chart */
/** @typedef {import('./readings.js').LineMark} LineMark */
/** @typedef {import('./readings.js').PointsMark} PointsMark */

const COLOURS = 8;
/** Share of a category or a lane that its bars or spans fill. */
const FILLED = 0.72;
/** Maximum number of bars with written values. */
const BAR_LABELS_MAX = 16;

/** @param {number} name */
export const colourOf = (name) => `--c${name % COLOURS}`;

/** Draws bars and spans, below the lines. @param {Chart} chart @param {uPlot} plot */
export function paintUnder(chart, plot) {
  const { ctx } = plot;
  const left = (/** @type {number} */ x) => plot.valToPos(x, 'x', true);
  const top = (/** @type {number} */ y) => plot.valToPos(y, 'y', true);
  const groups = chart.marks.filter((mark) => mark.kind === 'bars');
  ctx.save();
  groups.forEach((mark, group) => {
    ctx.fillStyle = colour(colourOf(mark.name));
    for (const [category, value] of mark.bars) {
      const [from, to] = barSides(category, group, groups.length).map(left);
      ctx.fillRect(from, top(value), to - from, top(0) - top(value));
    }
  });
  ctx.strokeStyle = colour('--card');
  ctx.lineWidth = 0.75 * devicePixelRatio;
  for (const mark of chart.marks) {
    if (mark.kind !== 'spans') continue;
    ctx.fillStyle = colour(colourOf(mark.name));
    for (const [lane, from, to] of mark.spans) {
      const row = chart.lanes.length - 1 - lane;
      const place = /** @type {const} */ ([left(from), top(row + FILLED / 2), left(to) - left(from), top(row - FILLED / 2) - top(row + FILLED / 2)]);
      ctx.globalAlpha = mark.idle ? 0.22 : 1;
      ctx.fillRect(...place);
      ctx.globalAlpha = 1;
      if (place[2] > 3) ctx.strokeRect(...place);
    }
  }
  ctx.restore();
}

/** Left and right edge of a bar. @param {number} category @param {number} group @param {number} groups */
function barSides(category, group, groups) {
  const width = FILLED / groups;
  const from = category - FILLED / 2 + group * width;
  // A narrow gap separates neighbouring bars.
  return [from + width * 0.03, from + width * 0.97];
}

/** Draws points, rules, the values of bars and the texts inside spans, above the lines. @param {Chart} chart @param {uPlot} plot */
export function paintOver(chart, plot) {
  const { ctx, bbox } = plot;
  const scaled = devicePixelRatio;
  const left = (/** @type {number} */ x) => plot.valToPos(x, 'x', true);
  const top = (/** @type {number} */ y) => plot.valToPos(y, 'y', true);
  const bars = chart.marks.filter((mark) => mark.kind === 'bars');
  /** Boxes of the texts drawn so far: left, top, right, bottom. @type {[number, number, number, number][]} */
  const taken = [];
  const isFree = (/** @type {[number, number, number, number]} */ box) => !taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  ctx.save();
  ctx.font = FONT.replace(/^[\d.]+/, (size) => String(Number(size) * scaled));
  for (const mark of chart.marks) {
    if (mark.kind === 'line' || mark.kind === 'points') dots(mark, chart.xs[mark.x], plot, ctx, scaled);
  }
  ctx.textAlign = 'center';
  ctx.fillStyle = colour('--ink');
  if (bars.reduce((sum, mark) => sum + mark.bars.length, 0) <= BAR_LABELS_MAX) {
    bars.forEach((mark, group) => {
      for (const [category, value] of mark.bars) {
        const [from, to] = barSides(category, group, bars.length).map(left);
        const text = number(value, 3);
        const [half, x, y] = [ctx.measureText(text).width / 2, (from + to) / 2, top(value) + (value < 0 ? 14 : -5) * scaled];
        /** @type {[number, number, number, number]} */ const box = [x - half, y - 12 * scaled, x + half, y + 2 * scaled];
        if (2 * half >= (to - from) * 1.2 || !isFree(box)) continue;
        ctx.fillText(text, x, y);
        taken.push(box);
      }
    });
  }
  ctx.textBaseline = 'middle';
  for (const mark of chart.marks) {
    if (mark.kind !== 'spans') continue;
    ctx.fillStyle = colour(mark.idle ? '--ink' : '--card');
    for (const [lane, from, to, , inside] of mark.spans) {
      if (inside && ctx.measureText(inside).width + 8 * scaled < left(to) - left(from)) ctx.fillText(inside, (left(from) + left(to)) / 2, top(chart.lanes.length - 1 - lane));
    }
  }
  for (const mark of chart.marks) {
    if (mark.kind !== 'rule') continue;
    const [x, y] = mark.axis === 'x' ? [left(mark.at), bbox.top] : [bbox.left, top(mark.at)];
    ctx.beginPath();
    ctx.setLineDash([2 * scaled, 4 * scaled]);
    ctx.lineWidth = 1.25 * scaled;
    ctx.strokeStyle = colour('--ink');
    ctx.moveTo(x, y);
    ctx.lineTo(mark.axis === 'x' ? x : bbox.left + bbox.width, mark.axis === 'x' ? bbox.top + bbox.height : y);
    ctx.stroke();
    const width = ctx.measureText(mark.label).width;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    // The first place without another text: above or below a horizontal rule, next to a vertical one.
    const places =
      mark.axis === 'y'
        ? [-9, 9].flatMap((off) => [right - 4 * scaled - width, bbox.left + 4 * scaled, bbox.left + (bbox.width - width) / 2].map((at) => [at, y + off * scaled]))
        : Array.from({ length: Math.max(1, Math.floor((bottom - y) / (16 * scaled))) }, (_, row) => y + (8 + 16 * row) * scaled).flatMap((at) => {
            const sides = [x + 6 * scaled, x - 6 * scaled - width].filter((from) => from >= bbox.left && from + width <= right);
            return (sides.length ? sides : [bbox.left]).map((from) => [from, at]);
          });
    const boxAt = (/** @type {number[]} */ [from, at]) => /** @type {[number, number, number, number]} */ ([from, at - 8 * scaled, from + width, at + 8 * scaled]);
    const place = /** @type {[number, number]} */ (places.find((at) => isFree(boxAt(at))) ?? places[0]);
    taken.push(boxAt(place));
    ctx.textAlign = 'left';
    ctx.setLineDash([]);
    ctx.lineWidth = 4 * scaled;
    ctx.lineJoin = 'round';
    ctx.strokeStyle = colour('--card');
    ctx.strokeText(mark.label, ...place);
    ctx.fillStyle = colour('--ink');
    ctx.fillText(mark.label, ...place);
  }
  ctx.restore();
}

/** Draws points, and isolated points of a line. @param {LineMark | PointsMark} mark @param {number[]} xs @param {uPlot} plot @param {CanvasRenderingContext2D} ctx @param {number} scaled */
function dots(mark, xs, plot, ctx, scaled) {
  ctx.fillStyle = colour(colourOf(mark.name));
  const many = mark.kind === 'points' && mark.y.length > 50;
  const radius = mark.kind === 'points' && mark.y.length < 10 ? 4 : 2.5;
  ctx.globalAlpha = many ? 0.55 : 1;
  mark.y.forEach((y, index) => {
    if (y == null || (mark.kind === 'line' && (mark.y[index - 1] != null || mark.y[index + 1] != null))) return;
    ctx.beginPath();
    ctx.arc(plot.valToPos(xs[index], 'x', true), plot.valToPos(y, 'y', true), radius * scaled, 0, 2 * Math.PI);
    ctx.fill();
  });
  ctx.globalAlpha = 1;
}
