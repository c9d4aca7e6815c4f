/** The page of a job: speeds, waits, decisions. */

import { ofJob, read, Refused } from '../api.js';
import { quiet, show } from '../connection.js';
import { fill, h, say } from '../charts/dom.js';
import { count, number, percent, plural, seconds } from '../charts/format.js';
import { nextFrame } from '../charts/frame.js';
import * as charts from '../job/charts.js';
import { Chosen } from '../job/chosen.js';
import { heat } from '../job/heat.js';
import { History, POINTS } from '../job/history.js';
import { Range } from '../job/range.js';
import { DecisionLog } from '../job/log.js';
import { models } from '../job/models.js';
import { picker } from '../job/picker.js';
import { summary } from '../job/summary.js';
import { WorkersTable } from '../job/workers.js';
import { change, offered } from '../operator.js';
import { first, listen } from '../stream.js';
import { jobsTable } from './jobs.js';

/** Interval at which workers are read again while iterations arrive, in milliseconds; longer with many workers, in milliseconds per worker. */
const READ_AGAIN_MS = 5_000;
const READ_AGAIN_MS_OF_WORKER = 20;
/** Pause before all is read again after that failed, in milliseconds. */
const RETRY_MS = 5_000;
/** Limit of live iterations that are kept while the history is read. */
const SINCE_MAX = 64;
/** Limit of runs in the comparison. */
const RUNS_MAX = 12;
/** Number of workers up to which each has a bar of its finish time; more have a map of speeds. */
const MANY = 12;

/** @type {import('../main.js').View} */
export function jobPage(content, id, signal) {
  const chosen = new Chosen(() => nextFrame(everything));
  const range = new Range(() => void again());
  let history = new History(range.spanS);
  let isRead = false;
  /** @type {any} */ let line = null;
  /** @type {any} */ let view = null;
  const log = new DecisionLog();
  /** @type {charts.Job} */
  const job = { id, history: () => history, isRead: () => isRead, chosen, signal, group: `job:${id}`, unit: () => view?.spec.unit ?? 'samples', events: () => log.events(), select: range.select };
  const head = summary(id);
  const said = h('p', { class: 'toast', role: 'status' });
  const trouble = h('p', { class: 'toast trouble', role: 'alert' });
  const table = new WorkersTable(job, (worker) => change(id, worker, (words) => { say(said, words); void context(); }, job.unit()));
  const pick = picker(chosen, () => history, () => table.slow);
  const finish = charts.finish(job);
  const rate = charts.rate(job);
  const map = heat(job, () => new Map(table.all.flatMap(({ worker, straggler }) => (straggler ? [[worker, straggler.speed_ratio]] : []))));
  const [steps, speeds, shares, waits, losses] = [charts.stepTimes(job), charts.speeds(job), charts.shares(job), charts.waits(job), charts.losses(job)];
  const drawn = [map, finish, steps, speeds, shares, waits, losses, rate];
  const weights = models();
  const runs = h('details', { class: 'deep', hidden: true });
  const inside = h('div', { class: 'grid' });
  const deep = h('details', { class: 'deep', ontoggle: () => deep.open && context().catch(failed) }, h('summary', {}, 'Models of the forecasts, learning rate'), inside);
  const [top, below] = [1, 2].map(() => h('div', { class: 'grid' }));

  fill(content, head.root, said, trouble,
    h('div', { class: 'controls' }, pick.root, range.root),
    top, speeds.root, table.root, below, runs, deep);

  const live = () => follow(false);
  /** @param {boolean} atOnce */
  const follow = (atOnce) => {
    // Without the workers, it is not known which are slow.
    if (view) chosen.propose(history, table.slow);
    place(history.workers.size > MANY, history.hasLoss);
    head.draw(line, history);
    const { latest } = history;
    log.decided(latest?.decision ?? view?.last_decision?.kind, latest?.reason ?? view?.last_decision?.reason);
    for (const chart of drawn) chart.draw(atOnce);
    table.draw(atOnce);
  };
  let placed = '';
  /** Places the charts. Many workers have a map of all, and their shares are alike. @param {boolean} many @param {boolean} hasLoss */
  const place = (many, hasLoss) => {
    if (placed === `${many} ${hasLoss}`) return;
    placed = `${many} ${hasLoss}`;
    const others = [waits.root, shares.root, ...(hasLoss ? [losses.root] : [])];
    fill(top, many ? map.root : finish.root, steps.root);
    fill(below, many ? finish.root : others, log.root);
    fill(inside, many ? others : [], weights.root, rate.root);
    log.root.classList.toggle('wide', !many && !hasLoss);
  };
  place(false, false);
  const everything = () => {
    pick.draw();
    follow(true);
  };

  /** Reads the job and its workers, which change less often than iterations; and what is only shown on demand. */
  async function context() {
    const [latest, workers] = await Promise.all([read(ofJob(id), signal), read(ofJob(id, '/workers'), signal)]);
    view = latest;
    head.replace(view);
    table.replace(workers.workers);
    if (deep.open) {
      const [forecast, answers] = await Promise.all([read(ofJob(id, '/forecast'), signal), read(ofJob(id, '/allocations?limit=1'), signal)]);
      weights.draw(forecast, chosen);
      rate.say(ramp(view, answers.at(-1)?.optimizer));
    }
    nextFrame(everything);
  }

  /** Compares with other runs whose names differ only in numbers. */
  async function compare() {
    const all = await first('v1/live', 'jobs', signal);
    line ??= all.jobs.find((/** @type {any} */ other) => other.job_id === id) ?? null;
    nextFrame(everything);
    const stem = (/** @type {string} */ name) => name.replaceAll(/[0-9a-f]*[0-9][0-9a-f]*/g, '#');
    const alike = all.jobs.filter((/** @type {any} */ other) => stem(other.job_id) === stem(id)).sort((/** @type {any} */ a, /** @type {any} */ b) => (b.at_unix_ms ?? 0) - (a.at_unix_ms ?? 0));
    runs.hidden = alike.length < 2;
    if (!runs.hidden) fill(runs, h('summary', {}, `Compare ${plural(alike.length, 'run')} with this name`), h('div', { class: 'card' }, h('p', { class: 'how' }, `Jobs whose ids differ from this one only in numbers, the latest first; at most ${RUNS_MAX}.`), jobsTable(alike.slice(0, RUNS_MAX), all.now_unix_ms, id)));
  }

  let reading = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let retrying;
  signal.addEventListener('abort', () => clearTimeout(retrying));
  /** Live iterations since the latest reading began, which its response may lack. @type {any[]} */ let since = [];
  /** Reads all data: at first, and after the connection was lost. */
  async function again() {
    const mine = ++reading;
    clearTimeout(retrying);
    since = [];
    try {
      await context();
      const ended = ['finished', 'failed', 'stalled'].includes(view.state) ? (line?.at_unix_ms ?? view.state_since_unix_ms) : null;
      const [told, entries, operator] = await Promise.all([
        read(ofJob(id, `/history?${range.query(ended)}&points=${POINTS}`), signal),
        read(ofJob(id, '/log'), signal),
        offered(signal),
      ]);
      // Another range was selected meanwhile.
      if (mine !== reading) return;
      const before = history.latest;
      history = History.of(told, range.spanS);
      history.latest = before;
      if (range.isLive) since.forEach((step) => history.append(step));
      isRead = true;
      say(trouble, '');
      log.replace(entries.entries);
      compare().catch(failed);
      if (table.operator !== operator) {
        table.operator = operator;
        await context();
      }
      nextFrame(everything);
    } catch (error) {
      failed(error);
      if (mine === reading && !isGone) incomplete(/** @type {Refused} */ (error));
    }
  }

  /** Describes why charts or workers are missing, and reads all again soon. @param {Refused} why */
  function incomplete(why) {
    if (signal.aborted) return;
    say(trouble, `${isRead ? 'This time range was not read.' : 'The history was not read.'} ${why.message} Trying again every ${seconds(RETRY_MS / 1000)}.`);
    for (const waiting of content.querySelectorAll('.loading, .waiting')) say(waiting, `${why.message} Trying again`);
    retrying = setTimeout(() => void again(), RETRY_MS);
  }

  let due = 0;
  const soon = () => {
    if (Date.now() < due) return;
    due = Date.now() + Math.max(READ_AGAIN_MS, READ_AGAIN_MS_OF_WORKER * table.all.length);
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
        if (range.isLive) history.append(data);
        else history.latest = data;
        since.push(data);
        if (since.length > SINCE_MAX) since.shift();
        nextFrame(live);
        soon();
      } else if (name === 'summary') {
        line = data;
        nextFrame(live);
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
