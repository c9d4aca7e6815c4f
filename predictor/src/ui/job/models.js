/** Weights of the models in the forecasts of the shown workers. */

import { fill, h } from '../charts/dom.js';
import { number, percent, plural, seconds, speed } from '../charts/format.js';
import { badge } from './picker.js';

/** Descriptions of models, by their names. @type {[RegExp, string][]} */
const WORDS = [
  [/^last/, 'the last value'],
  [/^ema/, 'a moving average'],
  [/^sma|^mean/, 'an average of the latest values'],
  [/^median/, 'the median of the latest values'],
  [/job|pool/, 'learned from all workers of the job'],
  [/^arx/, 'linear in recent speeds and drivers'],
  [/narx|network|nonlinear/, 'nonlinear in recent speeds and drivers'],
];

/** Smallest weight of a listed model, as a mean over the shown workers. */
const HEARD_FROM = 0.03;

export function models() {
  const body = h('div', {});
  const root = h('section', { class: 'card', 'aria-labelledby': 'models-title' },
    h('div', { class: 'head' }, h('h2', { id: 'models-title' }, 'Models of the forecasts')),
    h('p', { class: 'how' }, 'Several models forecast each worker. Their weights follow from their recent errors: a longer bar is a larger weight.'),
    body);
  return {
    root,
    /** @param {any} forecast @param {import('./chosen.js').Chosen} chosen */
    draw(forecast, chosen) {
      const workers = forecast.workers.filter((/** @type {any} */ { worker, models: all }) => chosen.mark(worker) && all.length);
      if (!workers.length) return fill(body, h('p', { class: 'nodata' }, 'None of the shown workers has been measured yet.'));
      /** @type {Map<string, number>} */
      const weight = new Map();
      for (const worker of workers) for (const model of worker.models) weight.set(model.model, (weight.get(model.model) ?? 0) + model.weight);
      const order = [...weight].sort((a, b) => b[1] - a[1]);
      const names = order.filter(([, sum]) => sum >= HEARD_FROM * workers.length).map(([name]) => name);
      const cell = (/** @type {any} */ worker, /** @type {string} */ name) => {
        const model = worker.models.find((/** @type {any} */ one) => one.model === name);
        if (!model) return h('td', { class: 'number' }, '–');
        const bar = h('i', { class: 'weight' });
        bar.style.setProperty('width', `${model.weight * 100}%`);
        bar.style.setProperty('--c', `var(${chosen.mark(worker.worker)?.colour})`);
        const record = model.log_rmse == null ? '' : `, its recent error ${percent(model.log_rmse)}`;
        return h('td', { class: 'weights', title: `expects ${speed(model.speed_samples_per_s)}${record}` }, h('span', { class: 'well' }, bar), h('span', {}, percent(model.weight, 0)));
      };
      fill(body,
        h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Weights of the models' }, h('table', { class: 'tight' },
          h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Model'), workers.map((/** @type {any} */ worker) => h('th', { scope: 'col' }, badge(chosen.mark(worker.worker)), ' ', worker.worker)))),
          h('tbody', {}, names.map((name) => h('tr', {}, h('th', { scope: 'row', title: WORDS.find(([pattern]) => pattern.test(name))?.[1] ?? null }, h('code', {}, name)), workers.map((/** @type {any} */ worker) => cell(worker, name))))))),
        h('p', { class: 'aside' }, order.length > names.length ? `${plural(order.length - names.length, 'more model has', 'more models have')} almost no weight. ` : '', `${plural(forecast.refits.fitted, 'network')} fitted in the background since the service started, in ${seconds(forecast.refits.fit_time_s)}`,
          forecast.refits.failed ? `; ${number(forecast.refits.failed)} failed, and the previous models remain in use.` : '.'));
    },
  };
}
