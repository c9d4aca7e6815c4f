/**
 * A chart of lines and bands on a canvas. It is drawn only while it is visible, or before printing. Arrow keys move from point to point.
 * uPlot is a separate script that is loaded before: the global `uPlot`.
 */

import { h } from './dom.js';
import { clock } from './format.js';
import { nextFrame, whileVisible } from './frame.js';
import { colour, THEME_CHANGED } from './colours.js';

/**
 * A line. `edge`: an invisible line that bounds a band; the scale ignores it.
 * @typedef {{ label: string, colour: string, dash?: number[], width?: number, edge?: boolean, fill?: boolean, letter?: string, stepped?: boolean }} Line
 */
/** The area between two lines, given by their positions: the upper, then the lower. @typedef {{ between: [number, number], colour: string }} Band */
/** @typedef {(number | null | undefined)[]} Column Null interrupts a line; undefined is skipped. */
/** An event on the time axis: its time in seconds since 1970, and its colour. @typedef {{ at: number, colour: string }} Event */
/**
 * Settings of a chart that is not over time: the smallest and the largest x and y, functions that draw below and above the lines in
 * canvas pixels, and settings of its axes.
 * @typedef {{ x: [number, number], y: [number, number], under: (plot: uPlot) => void, over: (plot: uPlot) => void, axes: [uPlot.Axis, uPlot.Axis] }} Plane
 */

const HEIGHT = 180;
/** Width in pixels below which dragging selects nothing. */
const SELECT_MIN = 8;
/** Width of the vertical axis of charts with a common time axis, in pixels. */
const SPAN_AXIS = 76;
export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

export class LineChart {
  /** @type {uPlot | null} */ #plot = null;
  #built = '';
  /** @type {{ lines: Line[], bands: Band[], at: number[], columns: Column[], events: Event[] }} */
  #shown = { lines: [], bands: [], at: [], columns: [], events: [] };
  #host;
  #options;
  #draw;

  /**
   * @param {HTMLElement} host
   * @param {{ name: string, format: (value: number) => string, zero?: boolean, top?: () => number | undefined, ends?: boolean, group?: string, onPoint?: (index: number | null) => void, onSelect?: (from: number, until: number) => void, height?: number, span?: () => [number, number] | null, plane?: Plane }} options
 *   `zero`: the scale begins at 0. `top`: the end of the scale. `ends`: labels of the time axis begin at its start and end at its end, as small charts need. `group`: charts with a common cursor. `onPoint`: called with the
 *   position of the cursor. `onSelect`: called with the range over which the user dragged. `height`: in pixels. `span`: the common time axis of several charts, which stand
   *   below each other. `plane`: for a chart that is not over time.
   * @param {AbortSignal} signal
   */
  constructor(host, options, signal) {
    this.#host = host;
    this.#options = options;
    for (const [name, value] of Object.entries({ tabindex: 0, role: 'group', 'aria-label': `${options.name}. Left and right arrows go from point to point.` })) host.setAttribute(name, String(value));
    this.#draw = whileVisible(host, () => this.#now());
    const resized = new ResizeObserver(() => nextFrame(this.#resize));
    resized.observe(host);
    const repaint = () => {
      this.#built = '';
      this.#draw();
    };
    addEventListener(THEME_CHANGED, repaint, { signal });
    addEventListener('beforeprint', () => this.#now(), { signal });
    host.addEventListener('keydown', (event) => this.#key(event), { signal });
    signal.addEventListener('abort', () => {
      resized.disconnect();
      this.#plot?.destroy();
      this.#plot = null;
    });
  }

  /** Shows columns, one per line, over times in seconds since 1970 (on a plane, over values of x). @param {Line[]} lines @param {Band[]} bands @param {number[]} at @param {Column[]} columns @param {Event[]} [events] */
  show(lines, bands, at, columns, events = []) {
    this.#shown = { lines, bands, at, columns, events };
    this.#draw();
  }

  #now() {
    const { lines, bands, at, columns } = this.#shown;
    const width = this.#host.clientWidth;
    if (!width || !at.length) return;
    const key = JSON.stringify([lines, bands]);
    const data = /** @type {uPlot.AlignedData} */ (/** @type {unknown} */ ([at, ...columns]));
    if (this.#plot && this.#built === key) return this.#plot.setData(data);
    this.#plot?.destroy();
    this.#built = key;
    this.#plot = new uPlot(this.#settings(width, lines, bands), data, this.#host);
  }

  #resize = () => {
    const width = this.#host.clientWidth;
    if (width && this.#plot && this.#plot.width !== width) this.#plot.setSize({ width, height: this.#plot.height });
  };

  /** @param {KeyboardEvent} event */
  #key(event) {
    const plot = this.#plot;
    const last = this.#shown.at.length - 1;
    if (!plot || last < 0) return;
    const here = plot.cursor.idx ?? last;
    /** @type {Record<string, number>} */
    const goes = { ArrowLeft: here - 1, ArrowRight: here + 1, PageUp: here - 10, PageDown: here + 10, Home: 0, End: last };
    if (!(event.key in goes)) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(last, goes[event.key]));
    plot.setCursor({ left: plot.valToPos(this.#shown.at[index], 'x'), top: plot.height / 3 });
  }

  /** @param {number} width @param {Line[]} lines @param {Band[]} bands @returns {uPlot.Options} */
  #settings(width, lines, bands) {
    const { format, zero, top, ends, group, onPoint, onSelect, height, span, plane } = this.#options;
    const soft = colour('--soft');
    const grid = { stroke: colour('--hair'), width: 1 };
    const stepped = uPlot.paths.stepped?.({ align: 1 });
    return {
      width,
      height: height ?? HEIGHT,
      legend: { show: false },
      padding: [10, 26, 0, 4],
      cursor: {
        y: false,
        drag: { x: onSelect != null, y: false, setScale: false },
        points: { show: (_, index) => (lines[index - 1].edge || lines[index - 1].fill ? h('i', { hidden: true }) : pointer(lines[index - 1])) },
        sync: group ? { key: group } : undefined,
      },
      scales: plane ? { x: { time: false, range: plane.x }, y: { range: plane.y } } : { ...(span && { x: { range: (_, low, high) => span() ?? [low, high] } }), y: { range: (_, low, high) => scale(low, high, zero, top?.()) } },
      axes: [
        { stroke: soft, font: FONT, grid: { show: false }, ticks: { stroke: colour('--axis'), size: 4 }, size: 30, space: 84, splits: ends ? (plot, _, low, high) => evenly(low, high, plot.width) : undefined, values: (_, splits, __, ___, apart) => splits.map((at) => (apart < 1 ? `${clock(at * 1000, false)}:${(at % 60).toFixed(apart < 0.01 ? 3 : 2).padStart(5, '0')}` : clock(at * 1000, apart < 60))), ...plane?.axes[0] },
        { stroke: soft, font: FONT, grid, ticks: { show: false }, space: 44, size: (_, values) => (span ? SPAN_AXIS : values ? Math.max(...values.map((value) => value.length)) * 6.6 + 14 : 40), values: (_, splits) => splits.map(format), ...plane?.axes[1] },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.edge ? 'transparent' : colour(line.colour),
          width: line.edge ? 0 : (line.width ?? 2),
          dash: line.dash,
          fill: line.fill ? colour(line.colour) : undefined,
          paths: line.stepped ? stepped : undefined,
          // No line leads to a point between two gaps.
          points: { show: false, size: 5, filter: (plot, index) => (line.edge || line.fill ? null : alone(plot.data[index])) },
          // Interval bounds can be far from the values: the scale follows only expected and actual values.
          auto: !line.edge,
          spanGaps: false,
        })),
      ],
      bands: bands.map(({ between, colour: name }) => ({ series: /** @type {[number, number]} */ (between.map((place) => place + 1)), fill: `${colour(name)}2e` })),
      hooks: {
        drawAxes: plane ? [plane.under] : [(plot) => eventMarks(plot, this.#shown.events)],
        draw: [(plot) => letters(plot, lines), ...(plane ? [plane.over] : [])],
        setCursor: [(plot) => onPoint?.(plot.cursor.idx ?? null)],
        setSelect: onSelect
          ? [(plot) => {
              const { left, width } = plot.select;
              if (width < SELECT_MIN) return;
              plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              onSelect(plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x'));
            }]
          : [],
      },
    };
  }
}

/** The positions of values between gaps; null if every value has a neighbour. @param {Column} column */
function alone(column) {
  const found = column.flatMap((value, index) => (value != null && column[index - 1] == null && column[index + 1] == null ? [index] : []));
  return found.length ? found : null;
}

/** @param {Line} line */
function pointer(line) {
  const point = h('i', { class: 'point' });
  point.style.setProperty('background', colour(line.colour));
  point.style.setProperty('width', '8px');
  point.style.setProperty('height', '8px');
  return point;
}

/**
 * The range of the scale: from zero if that takes little of the height, else slightly wider than the data.
 * @param {number | null} low @param {number | null} high @param {boolean} [zero] @param {number} [top]
 * @returns {[number, number]}
 */
export function scale(low, high, zero, top) {
  if (low == null || high == null) return [0, top ?? 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  const from = zero || (low >= 0 && low < high * 0.6) ? Math.min(0, low) : low - room;
  return [from, top ?? high + room];
}

/** Times from the start to the end of an axis, as far apart as their labels need. @param {number} low @param {number} high @param {number} width in pixels */
function evenly(low, high, width) {
  const parts = Math.max(1, Math.floor(width / 200));
  return Array.from({ length: parts + 1 }, (_, index) => low + ((high - low) * index) / parts);
}

/** Draws each event as a line above the time axis. @param {uPlot} plot @param {Event[]} events */
function eventMarks(plot, events) {
  const scaled = devicePixelRatio || 1;
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = 2 * scaled;
  for (const event of events) {
    const x = plot.valToPos(event.at, 'x', true);
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
    ctx.strokeStyle = colour(event.colour);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height - 12 * scaled);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** Draws each line's letter at its end, without overlaps. @param {uPlot} plot @param {Line[]} lines */
function letters(plot, lines) {
  const scaled = devicePixelRatio || 1;
  const { ctx, bbox } = plot;
  /** @type {{ y: number, line: Line }[]} */
  const ends = [];
  lines.forEach((line, index) => {
    const values = plot.data[index + 1];
    let last = values.length - 1;
    while (last >= 0 && values[last] == null) last--;
    if (line.letter && last >= 0) ends.push({ y: plot.valToPos(/** @type {number} */ (values[last]), 'y', true), line });
  });
  ends.sort((a, b) => a.y - b.y);
  // Below the one above it, then as far up as those below it need.
  let above = -Infinity;
  for (const end of ends) above = end.y = Math.max(bbox.top + 5 * scaled, end.y, above + 12 * scaled);
  let below = bbox.top + bbox.height + 6 * scaled;
  for (const end of ends.toReversed()) below = end.y = Math.min(end.y, below - 12 * scaled);
  ctx.save();
  ctx.font = `600 ${11 * scaled}px system-ui, sans-serif`;
  ctx.textAlign = 'left';
  ctx.textBaseline = 'middle';
  for (const { y, line } of ends) {
    ctx.fillStyle = colour(line.colour);
    ctx.fillText(/** @type {string} */ (line.letter), bbox.left + bbox.width + 7 * scaled, y);
  }
  ctx.restore();
}
