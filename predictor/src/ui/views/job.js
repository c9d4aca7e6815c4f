/** The page of a job: speeds, waits, decisions. */

import { ofJob, read, Refused } from '../api.js';
import { quiet, show } from '../connection.js';
import { fill, h, say } from '../charts/dom.js';
import { count, number, percent, seconds, speed } from '../charts/format.js';
import { nextFrame } from '../charts/frame.js';
import * as charts from '../job/charts.js';
import { Chosen } from '../job/chosen.js';
import { History, POINTS } from '../job/history.js';
import { DecisionLog } from '../job/log.js';
import { models } from '../job/models.js';
import { picker } from '../job/picker.js';
import { summary } from '../job/summary.js';
import { WorkersTable } from '../job/workers.js';
import { change, offered } from '../operator.js';
import { listen } from '../stream.js';

/** Selectable time spans, in seconds. @type {[number, string][]} */
const SPANS = [[300, '5 minutes'], [900, '15 minutes'], [3600, 'an hour'], [21600, '6 hours']];
const SPAN = 3600;
/** Number of workers from which two charts are placed next to the bars of finish times. */
const MANY = 24;
/** Interval at which forecasts and workers are read again while iterations arrive. */
const READ_AGAIN_MS = 5_000;

/** @type {import('../main.js').View} */
export function jobPage(content, id, signal) {
  let history = new History(SPAN);
  let span = SPAN;
  /** @type {any} */ let forecast = null;
  const chosen = new Chosen(id, () => nextFrame(everything));
  /** @type {charts.Job} */
  const job = { history: () => history, chosen, signal, group: `job:${id}` };
  const head = summary(id);
  const spans = h('select', { 'aria-label': 'Time span', onchange: () => { span = Number(spans.value); void again(); } }, SPANS.map(([value, name]) => h('option', { value, selected: value === SPAN }, `The last ${name}`.replace('last an ', 'last '))));
  const pick = picker(chosen, () => history);
  const finish = charts.finish(job);
  const rate = charts.rate(job);
  const drawn = [finish, charts.stepTimes(job), charts.speeds(job), charts.shares(job), charts.waits(job), rate];
  const [, steps, speeds, shares, waits] = drawn;
  const weights = models();
  const log = new DecisionLog();
  const said = h('p', { class: 'toast', role: 'status' });
  const table = new WorkersTable(job, (worker) => change(id, worker, (words) => { say(said, words); void context(); }));

  const beside = h('div', { class: 'stack' }, steps.root);
  const below = h('div', { class: 'grid' }, speeds.root, shares.root, waits.root);
  fill(content, head.root, said,
    h('div', { class: 'grid' }, finish.root, beside),
    h('div', { class: 'controls' }, pick.root, spans),
    below,
    table.root,
    h('div', { class: 'grid' }, log.root, h('div', { class: 'stack' }, weights.root, rate.root)));

  const live = () => follow(false);
  /** @param {boolean} atOnce */
  const follow = (atOnce) => {
    chosen.propose(history);
    // The bars of many workers are as high as two charts.
    const many = history.workers.size >= MANY;
    if (many !== (waits.root.parentElement === beside)) (many ? beside : below).append(waits.root);
    shares.root.classList.toggle('wide', many);
    head.draw(history);
    for (const chart of drawn) chart.draw(atOnce);
    table.draw(atOnce);
  };
  const everything = () => {
    pick.draw();
    if (forecast) weights.draw(forecast, chosen);
    follow(true);
  };

  /** Reads the job, its workers and its forecast, which change less often than iterations. */
  async function context() {
    const [view, workers, latest, answers] = await Promise.all([read(ofJob(id), signal), read(ofJob(id, '/workers'), signal), read(ofJob(id, '/forecast'), signal), read(ofJob(id, '/allocations?limit=1'), signal)]);
    head.replace(view);
    table.replace(workers.workers);
    forecast = latest;
    rate.say(ramp(view, answers.at(-1)?.optimizer));
    nextFrame(everything);
  }

  let reading = 0;
  /** Reads all data: at first, and after the connection was lost. */
  async function again() {
    const mine = ++reading;
    try {
      const [told, entries, operator] = await Promise.all([
        read(ofJob(id, `/history?since_s=${span}&points=${POINTS}`), signal),
        read(ofJob(id, '/log'), signal),
        offered(signal),
        context(),
      ]);
      // Another span was selected meanwhile.
      if (mine !== reading) return;
      const before = history.latest;
      history = History.of(told, span);
      history.latest = before;
      log.replace(entries.entries);
      if (table.operator !== operator) {
        table.operator = operator;
        await context();
      }
      nextFrame(everything);
    } catch (error) {
      failed(error);
    }
  }

  let due = 0;
  const soon = () => {
    if (Date.now() < due) return;
    due = Date.now() + READ_AGAIN_MS;
    context().catch(failed);
  };

  /** @param {unknown} error */
  function failed(error) {
    if (signal.aborted) return;
    if (!(error instanceof Refused)) throw error;
    // If the service is unreachable, the stream shows it and reconnects.
    if (error.status === 404 || error.status === 307) gone(error);
  }

  let isGone = false;
  /** @param {Refused} why */
  function gone(why) {
    if (isGone) return;
    isGone = true;
    quiet();
    const elsewhere = why.status === 307;
    fill(content, h('h1', { tabindex: -1 }, id), h('div', { class: 'card welcome' },
      h('h2', {}, elsewhere ? 'Another predictor serves this job' : 'Unknown job'),
      h('p', {}, elsewhere ? 'The list of jobs links to its page on that predictor.' : 'It was deleted, or it never existed.'),
      h('p', {}, h('a', { href: '#/' }, 'All jobs'))));
  }

  const stream = listen(ofJob(id, '/live'), {
    onOpen: () => void again(),
    onEvent: (name, data) => {
      if (isGone) return;
      if (name === 'step') {
        history.append(data);
        nextFrame(live);
        soon();
      } else if (name === 'log') log.add(data);
      else if (name === 'changed') context().catch(failed);
      // Deleted, or served by another predictor now: a request finds out which.
      else if (name === 'gone') read(ofJob(id), signal).then(() => stream.retry(), failed);
    },
    onState: (state) => {
      if (isGone) return;
      if (state.kind === 'refused') gone(state.why);
      else show(state, () => stream.retry());
    },
  }, signal);
}

/** The text about the learning rate. @param {any} view @param {any} optimizer */
function ramp(view, optimizer) {
  if (!optimizer) return '';
  const rule = `Rule: ${optimizer.rule.replaceAll('_', ' ')}. `;
  const { ramp: under } = optimizer;
  if (under && view.next_iteration < under.start_iteration + under.iterations) {
    const done = (view.next_iteration - under.start_iteration) / under.iterations;
    return `${rule}Ramp from ×${number(under.from)} to ×${number(under.to)} over ${count(under.iterations)} iterations; ${percent(Math.max(0, done), 0)} complete.`;
  }
  return `${rule}Constant at ×${number(optimizer.lr_multiplier)}.`;
}
