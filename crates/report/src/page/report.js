/** Draws the charts of a report. Each figure of the page contains the data of its chart as JSON, below the title and the description. */

import { applyTheme, colour } from './colours.js';
import { h, say } from './dom.js';
import { figure } from './figure.js';
import { number } from './format.js';
import { LineChart, scale } from './line.js';
import { colourOf, paintOver, paintUnder } from './paint.js';
import { asTable, caption, ends, NEAR, reading, readingsAt, spanAt, suitUnit, values } from './readings.js';
import { fitted, tickLabels, widthOf, wrapped } from './text.js';

/** @typedef {import('./readings.js').Chart} Chart */

const DASHES = [6, 5];
const PLOT_PX = 250;
const LANE_PX = 30;
/** Height of tick marks and their labels below the plot. */
const UNDER_PX = 40;
const LINE_PX = 15;

/** Returns the line style of a name in the legend. @param {Chart} chart @param {number} name @returns {import('./figure.js').LegendEntry['line']} */
function keyOf(chart, name) {
  const marks = chart.marks.filter((mark) => mark.kind !== 'rule' && mark.name === name);
  const line = marks.find((mark) => mark.kind === 'line');
  if (line?.kind === 'line') return line.dashed ? 'dashed' : 'solid';
  if (marks.some((mark) => mark.kind === 'points')) return 'dotted';
  return marks.some((mark) => mark.kind === 'band' || (mark.kind === 'spans' && mark.idle)) ? 'faint' : 'area';
}

/** Returns the lines, bands and columns of a chart over common values of x. @param {Chart} chart */
function lined(chart) {
  /** @type {import('./line.js').Line[]} */ const lines = [];
  /** @type {import('./line.js').Band[]} */ const bands = [];
  /** @type {[number[], (number | null)[]][]} */ const tables = [];
  /** @param {number} x @param {(number | null)[]} y @param {import('./line.js').Line} line */
  const add = (x, y, line) => {
    tables.push([chart.xs[x], y]);
    return lines.push(line) - 1;
  };
  for (const mark of chart.marks) {
    if (mark.kind === 'rule' || mark.kind === 'spans' || mark.kind === 'bars') continue;
    const line = { label: chart.names[mark.name], colour: colourOf(mark.name) };
    if (mark.kind === 'line') add(mark.x, mark.y, mark.dashed ? { ...line, dash: DASHES, width: 1.75 } : line);
    else if (mark.kind === 'area') add(mark.x, mark.y, { ...line, fill: true, width: 0.5 });
    else if (mark.kind === 'band') bands.push({ between: [add(mark.x, mark.upper, { ...line, edge: true }), add(mark.x, mark.lower, { ...line, edge: true })], colour: line.colour });
  }
  const stops = stopsOf(chart);
  if (stops.length) {
    tables.push([stops, stops.map(() => 0)]);
    lines.push({ label: '', colour: '--ink', edge: true });
  }
  const [at, ...columns] = /** @type {any} */ (uPlot).join(tables);
  return { at, columns, lines, bands };
}

/** Pointer positions without a line: categories, points (several may share an x), starts and ends of spans. @param {Chart} chart */
function stopsOf({ categories, marks, xs }) {
  if (categories.length) return categories.map((_, place) => place);
  const all = marks.flatMap((mark) => (mark.kind === 'spans' ? mark.spans.flatMap(([, from, to]) => [from, to]) : mark.kind === 'points' ? xs[mark.x] : []));
  return [...new Set(all)].sort((a, b) => a - b);
}

/** Returns the settings of both axes. @param {Chart} chart @returns {[uPlot.Axis, uPlot.Axis]} */
function axes(chart) {
  const { categories, lanes } = chart;
  /** @type {uPlot.Axis} */
  const linear = { values: (_, splits, __, ___, apart) => tickLabels(splits, apart) };
  /** @param {uPlot} plot */
  const room = (plot) => (plot.bbox.width / devicePixelRatio || plot.width - 80) / categories.length - 6;
  /** @param {uPlot} plot Leaves out some names if all of them do not fit. */
  const names = (plot) => {
    const stride = Math.max(1, Math.ceil(26 / (room(plot) + 6)));
    return categories.map((name, place) => (place % stride ? [] : wrapped(name, room(plot) * stride)));
  };
  const x = categories.length
    ? {
        splits: () => categories.map((_, place) => place),
        values: (/** @type {uPlot} */ plot) => names(plot).map((lines) => lines.join('\n')),
        size: (/** @type {uPlot} */ plot) => 14 + LINE_PX * Math.max(1, ...names(plot).map((lines) => lines.length)),
        ticks: { show: false },
      }
    : { ...linear, grid: lanes.length ? { stroke: () => colour('--hair'), width: 1 } : { show: false } };
  const laneRoom = (/** @type {uPlot} */ plot) => Math.min(Math.max(...lanes.map(widthOf)), plot.width * 0.3);
  const y = lanes.length
    ? {
        splits: () => lanes.map((_, row) => row),
        values: (/** @type {uPlot} */ plot) => lanes.map((_, row) => fitted(lanes[lanes.length - 1 - row], laneRoom(plot))),
        size: (/** @type {uPlot} */ plot) => laneRoom(plot) + 16,
        grid: { show: false },
      }
    : linear;
  return [x, y];
}

/** Widens a range that is too narrow to draw. @param {[number, number]} ends @returns {[number, number]} */
function apart([low, high]) {
  const least = Math.max(Math.abs(low), Math.abs(high)) * 1e-9;
  return high - low > least ? [low, high] : [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
}

/** Replaces the data by the drawn chart. @param {HTMLElement} host */
function show(host) {
  const text = (/** @type {string} */ css) => host.querySelector(css)?.textContent ?? '';
  /** @type {Chart} */
  const chart = JSON.parse(text('script'));
  suitUnit(chart, 'x');
  suitUnit(chart, 'y');
  const frame = figure({ title: text('h3'), how: text('.how'), heading: 'h3', table: () => asTable(chart) });
  frame.nothing(null);
  const { at, columns, lines, bands } = lined(chart);
  const { categories, lanes, names } = chart;
  const xRange = categories.length ? /** @type {[number, number]} */ ([-0.5, categories.length - 0.5]) : apart(ends(values(chart, 'x')));
  const near = categories.length ? 0 : (xRange[1] - xRange[0]) * NEAR;
  const under = h('p', { class: 'axis' }, caption(chart.x));
  frame.plot.before(h('p', { class: 'axis upright' }, caption(chart.y)));
  frame.plot.after(under);
  /** @type {uPlot | undefined} */
  let drawn;
  /** @param {number | null} index */
  const point = (index) => {
    const x = index == null ? null : at[index];
    frame.legend(names.map((label, name) => ({ label, colour: colourOf(name), line: keyOf(chart, name), value: x == null ? '' : readingsAt(chart, name, x, near) })));
    const here = x == null ? '' : lanes.length ? spanAt(chart, drawn) : categories.length ? categories[x] : reading(chart.x, x);
    say(under, here || caption(chart.x) || ' ');
  };
  point(null);
  host.replaceWith(frame.root);
  const plane = {
    x: xRange,
    y: lanes.length ? /** @type {[number, number]} */ ([-0.5, lanes.length - 0.5]) : scale(...ends(values(chart, 'y')), chart.y.zero, chart.y.end),
    under: (/** @type {uPlot} */ plot) => {
      drawn = plot;
      paintUnder(chart, plot);
    },
    over: (/** @type {uPlot} */ plot) => paintOver(chart, plot),
    axes: axes(chart),
  };
  const height = lanes.length ? lanes.length * LANE_PX + UNDER_PX : PLOT_PX;
  const options = { name: text('h3') || 'Chart', format: (/** @type {number} */ value) => number(value), onPoint: point, height, plane };
  new LineChart(frame.plot, options, new AbortController().signal).show(lines, bands, at, columns);
}

const dark = matchMedia('(prefers-color-scheme: dark)');
const followSystem = () => applyTheme(dark.matches);
followSystem();
dark.addEventListener('change', followSystem);
// Print uses the light theme. The handler is registered before any chart, so charts are drawn in these colours.
addEventListener('beforeprint', () => applyTheme(false));
addEventListener('afterprint', followSystem);
for (const host of document.querySelectorAll('figure.chart')) if (host.querySelector('script')) show(/** @type {HTMLElement} */ (host));
