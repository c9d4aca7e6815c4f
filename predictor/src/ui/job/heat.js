/** The speeds of all workers over time, as a heat map: a row for each worker, the worst first. Only the rows in view are drawn. */

import { colour, THEME_CHANGED } from '../charts/colours.js';
import { h, say, set } from '../charts/dom.js';
import { figure, ROWS_MAX } from '../charts/figure.js';
import { clock, NONE, percent } from '../charts/format.js';
import { nextFrame, whileVisible } from '../charts/frame.js';
import { FONT } from '../charts/line.js';
import { workerLink } from './workers.js';

const REDRAW_MS = 1000;
/** Time for which the rows keep their order, in milliseconds: the iterations come faster than a person reads. */
const ORDER_MS = 10_000;
const ROW_PX = 15;
/** Height of the rows in view and of the time axis, in pixels. */
const VIEW_PX = 9 * ROW_PX;
const AXIS_PX = 22;
/** Width of a bin in pixels. */
const BIN_PX = 4;
/** Number of latest points that decide the order. */
const LATEST = 16;
/** What moves the workers that are flagged as slow before all others. */
const FLAGGED_FIRST = 1000;
/** The quantile of a worker's speeds that is its usual speed. */
const USUAL = 0.75;
/** Distance from 1 at which a colour is full. */
const FULL = 0.5;
const SHADES = 20;
/** Length above which a worker's name is shortened in the line below the map, so that the value is visible. */
const NAME_MAX = 60;

/** @typedef {import('./charts.js').Job} Job */

/**
 * @param {Job} job @param {() => Map<string, number>} slow speed ratios of the workers that are slow now
 * @returns {import('./charts.js').Chart}
 */
export function heat(job, slow) {
  let usual = true;
  let [ordered, active] = [-Infinity, -1];
  /** @type {string[]} */ let order = [];
  /** @type {Map<string, number>} */ let usualOf = new Map();
  const frame = figure({
    title: 'Workers over time',
    how: 'Actual speed in percent, the slowest worker first. A click opens the worker.',
    table: () => ({
      head: ['Worker', 'Latest', 'Lowest'],
      rows: order.slice(0, ROWS_MAX).map((worker) => {
        const known = ratios(worker).filter((value) => value != null);
        return [worker, percent(known.at(-1), 0), known.length ? percent(Math.min(...known), 0) : NONE];
      }),
      note: `Actual speed in percent of the ${usual ? 'usual' : 'expected'} speed, the slowest workers first.`,
    }),
  });
  const buttons = [true, false].map((kind) => h('button', { type: 'button', class: 'small', onclick: () => { usual = kind; ordered = -Infinity; press(); draw(true); } }, kind ? 'usual speed' : 'expected speed'));
  const press = () => buttons.forEach((button, index) => set(button, 'aria-pressed', String((index === 0) === usual)));
  press();
  const words = h('p', { class: 'at', role: 'status' });
  const canvas = h('canvas', {});
  const spacer = h('div', { class: 'spacer' });
  const scroll = h('div', { class: 'heat', tabindex: 0, role: 'group', 'aria-label': 'Workers over time. Up and down arrows go from worker to worker, Enter opens the worker.', onscroll: () => nextFrame(paint) }, canvas, spacer);
  frame.root.querySelector('.head > :last-child')?.before(h('span', { class: 'ranges', role: 'group', 'aria-label': 'Compared with the' }, buttons));
  frame.plot.append(scroll, words);
  const context = canvas.getContext('2d');
  new ResizeObserver(() => nextFrame(paint)).observe(scroll);
  addEventListener(THEME_CHANGED, () => nextFrame(paint), { signal: job.signal });

  /** Actual over usual or expected speed at each point. @param {string} worker @returns {(number | null)[]} */
  function ratios(worker) {
    const columns = job.history().workers.get(worker);
    const whole = usualOf.get(worker);
    return (columns?.actual_samples_per_s ?? []).map((actual, index) => {
      const of = usual ? whole : columns?.predicted_samples_per_s[index];
      return actual == null || !of ? null : actual / of;
    });
  }

  /** Puts the slow workers first, then those whose latest speeds are lowest. */
  function sort() {
    const { workers } = job.history();
    const flagged = slow();
    const scores = new Map();
    usualOf = new Map();
    for (const [worker, { actual_samples_per_s: actual, predicted_samples_per_s: expected }] of workers) {
      const known = Float64Array.from(actual.filter((value) => value != null)).sort();
      const latest = actual.flatMap((value, index) => (value == null ? [] : [index])).slice(-LATEST);
      const mean = (/** @type {(index: number) => number} */ of) => latest.reduce((sum, index) => sum + of(index), 0) / latest.length;
      const now = mean((index) => actual[index] ?? 0);
      const ratio = flagged.get(worker);
      // The range may begin after a worker became slow. The service knows its speed before.
      const reference = Math.max(known[Math.floor(known.length * USUAL)] ?? 0, ratio ? now / ratio : 0);
      if (reference) usualOf.set(worker, reference);
      const score = usual ? now / reference : mean((index) => (actual[index] ?? 0) / (expected[index] || Infinity));
      scores.set(worker, ratio ? ratio - FLAGGED_FIRST : (score || Infinity));
    }
    order = [...scores].sort(([, one], [, other]) => one - other).map(([worker]) => worker);
  }

  const geometry = () => {
    const width = scroll.clientWidth;
    return { width, names: width < 500 ? 96 : 132, first: Math.floor(scroll.scrollTop / ROW_PX), count: Math.ceil(scroll.clientHeight / ROW_PX) };
  };
  const bins = () => {
    const { width, names } = geometry();
    return job.history().bins(Math.max(24, Math.floor((width - names) / BIN_PX)));
  };

  function paint() {
    const { width, names, first, count } = geometry();
    const shown = bins();
    if (!width || !context || shown.at.length < 1) return;
    const [scaled, height] = [devicePixelRatio || 1, scroll.clientHeight];
    if (canvas.width !== Math.round(width * scaled) || canvas.height !== Math.round(height * scaled)) {
      [canvas.width, canvas.height] = [Math.round(width * scaled), Math.round(height * scaled)];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    }
    context.setTransform(scaled, 0, 0, scaled, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = 'middle';
    const palette = shades();
    const [from, until] = [shown.at[0], shown.at.at(-1) ?? 0];
    const last = (until - from) / Math.max(1, shown.at.length - 1) || 1;
    const x = (/** @type {number} */ at) => names + ((at - from) / (until + last - from)) * (width - names);
    const offset = scroll.scrollTop - first * ROW_PX;
    for (let row = first; row <= first + count && row < order.length; row++) {
      const top = (row - first) * ROW_PX - offset;
      const { middle } = shown.of(ratios(order[row]));
      middle.forEach((value, bin) => {
        if (value == null) return;
        context.fillStyle = palette[Math.round(Math.max(-1, Math.min(1, (value - 1) / FULL)) * SHADES) + SHADES];
        const left = Math.floor(x(shown.at[bin]));
        context.fillRect(left, top, Math.ceil(x(shown.at[bin + 1] ?? until + last)) - left, ROW_PX - 1);
      });
      context.fillStyle = colour(row === active ? '--accent' : '--ink');
      context.fillText(fit(context, order[row], names - 8), 2, top + ROW_PX / 2);
      if (row === active) {
        context.strokeStyle = colour('--accent');
        context.lineWidth = 2;
        context.strokeRect(1, top, width - 2, ROW_PX);
      }
    }
    context.clearRect(0, height - AXIS_PX, width, AXIS_PX);
    context.fillStyle = colour('--soft');
    const ticks = Math.max(1, Math.floor((width - names) / 110));
    for (let tick = 0; tick <= ticks; tick++) {
      context.textAlign = tick === 0 ? 'left' : tick === ticks ? 'right' : 'center';
      context.fillText(clock((from + ((until - from) * tick) / ticks) * 1000), names + ((width - names) * tick) / ticks, height - AXIS_PX / 2);
    }
    context.textAlign = 'left';
  }

  const draw = whileVisible(frame.root, () => {
    const history = job.history();
    if (!job.isRead()) return;
    frame.nothing(history.reported < 0 ? 'No iteration has been reported in this time range.' : null);
    if (history.reported < 0) return;
    if (order.length !== history.workers.size || (performance.now() - ordered > ORDER_MS && active < 0)) {
      sort();
      ordered = performance.now();
    }
    frame.legend([
      { label: `${percent(1 - FULL, 0)} or less`, line: 'area', colour: '--c1' },
      { label: '100 %', line: 'area', colour: '--well' },
      { label: `${percent(1 + FULL, 0)} or more`, line: 'area', colour: '--c0' },
    ]);
    spacer.style.setProperty('height', `${Math.max(0, order.length * ROW_PX - VIEW_PX)}px`);
    scroll.style.setProperty('height', `${Math.min(VIEW_PX, order.length * ROW_PX) + AXIS_PX}px`);
    paint();
  }, REDRAW_MS);

  /** @param {number} row @param {number} [left] position of the pointer in pixels */
  function activate(row, left) {
    active = row;
    const worker = order[row];
    const shown = bins();
    const { width, names } = geometry();
    const bin = left == null ? shown.at.length - 1 : Math.max(0, Math.min(shown.at.length - 1, Math.floor(((left - names) / (width - names)) * shown.at.length)));
    const { middle } = shown.of(worker ? ratios(worker) : []);
    const known = left == null ? (middle.findLast((value) => value != null) ?? null) : middle[bin];
    say(words, worker ? `${worker.length > NAME_MAX ? `${worker.slice(0, NAME_MAX)}…` : worker}, ${left == null ? 'latest' : clock(shown.at[bin] * 1000)}: ${known == null ? 'no report' : percent(known, 0)}` : '');
    nextFrame(paint);
  }
  const rowAt = (/** @type {MouseEvent} */ event) => {
    const y = event.clientY - scroll.getBoundingClientRect().top;
    const row = Math.floor((y + scroll.scrollTop) / ROW_PX);
    return y < scroll.clientHeight - AXIS_PX && row < order.length ? row : -1;
  };
  const open = () => {
    if (order[active]) location.hash = workerLink(job.id, order[active]);
  };
  scroll.addEventListener('mousemove', (/** @type {MouseEvent} */ event) => activate(rowAt(event), event.clientX - scroll.getBoundingClientRect().left));
  scroll.addEventListener('mouseleave', () => activate(-1));
  scroll.addEventListener('blur', () => activate(-1));
  scroll.addEventListener('click', (/** @type {MouseEvent} */ event) => {
    activate(rowAt(event));
    open();
  });
  scroll.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
    /** @type {Record<string, number>} */
    const goes = { ArrowUp: active - 1, ArrowDown: active + 1, PageUp: active - 10, PageDown: active + 10, Home: 0, End: order.length - 1 };
    if (event.key === 'Enter') open();
    if (!(event.key in goes)) return;
    event.preventDefault();
    activate(Math.max(0, Math.min(order.length - 1, goes[event.key])));
    const top = active * ROW_PX;
    const inView = scroll.clientHeight - AXIS_PX - ROW_PX;
    scroll.scrollTop = Math.max(top - inView, Math.min(scroll.scrollTop, top));
  });
  return { root: frame.root, draw };
}

/** Colours from slow to fast. */
function shades() {
  const [low, middle, high] = ['--c1', '--well', '--c0'].map((name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16)));
  return Array.from({ length: 2 * SHADES + 1 }, (_, index) => {
    const part = Math.abs(index - SHADES) / SHADES;
    return `rgb(${(index < SHADES ? low : high).map((value, at) => Math.round(value * part + middle[at] * (1 - part)))})`;
  });
}

/** The text, shortened to a width. @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}
