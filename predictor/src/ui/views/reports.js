/** Reports of backtests, simulations and trainings, from the service's folder or from a file on this computer. */

import { read, Refused } from '../api.js';
import { quiet } from '../connection.js';
import { fill, h } from '../charts/dom.js';
import { bytes, moment } from '../charts/format.js';

/** Size limit of a report, in bytes. */
const FILE_MAX = 64 * 1024 * 1024;

/** @type {import('../main.js').View} */
export function reportsPage(content, name, signal) {
  quiet();
  if (name) {
    return fill(content, h('p', { class: 'crumbs' }, h('a', { href: '#/reports' }, 'Reports'), ' /'), h('div', { class: 'head' }, h('h1', { tabindex: -1 }, name), h('a', { href: `reports/${encodeURIComponent(name)}`, target: '_blank', rel: 'noopener' }, 'Open in a new tab')),
      h('iframe', { class: 'report', title: `Report ${name}`, sandbox: 'allow-scripts', src: `reports/${encodeURIComponent(name)}` }));
  }
  const list = h('div', { class: 'stack' }, h('p', { class: 'loading' }, 'Loading'));
  const shown = h('div', {});
  const error = h('p', { class: 'error', role: 'alert' });
  const input = h('input', { type: 'file', accept: '.html,text/html', id: 'report-file', onchange: () => void open(input.files?.[0]) });
  fill(content, h('h1', { tabindex: -1 }, 'Reports'),
    h('p', { class: 'lead' }, 'HTML reports of backtest, simulate and training runs. A backtest measures forecast errors on recorded runs; a simulation compares policies on a cluster.'),
    list,
    h('section', { class: 'card' }, h('div', { class: 'head' }, h('h2', {}, h('label', { for: 'report-file' }, 'Open a report file'))), h('p', { class: 'how' }, 'A file on this computer. It is displayed here and not sent anywhere.'), input, error), shown);

  /** @param {File | undefined} file */
  async function open(file) {
    fill(error);
    if (!file) return;
    if (file.size > FILE_MAX) return fill(error, `${file.name} has ${bytes(file.size)}, above the limit of ${bytes(FILE_MAX)}; open the file directly.`);
    const text = await file.text();
    // The viewer is a sandboxed page whose policy allows the report's inline styles. It receives the text by message
    // after it is loaded.
    const frame = h('iframe', { class: 'report', title: `Report ${file.name}`, sandbox: 'allow-scripts', src: 'ui/viewer.html' });
    frame.addEventListener('load', () => frame.contentWindow?.postMessage({ report: text }, '*'), { once: true });
    fill(shown, h('h2', {}, file.name), frame);
  }

  read('v1/reports', signal).then(
    ({ reports }) => fill(list, reports == null ? unset() : reports.length ? table(reports) : h('p', { class: 'card empty' }, 'The folder of reports has no page (*.html) in it yet.')),
    (why) => {
      if (!(why instanceof Refused)) throw why;
      fill(list, h('p', { class: 'card empty' }, why.message));
    },
  ).catch((why) => {
    if (!signal.aborted) throw why;
  });
}

/** @param {any[]} reports */
function table(reports) {
  return h('section', { class: 'card' }, h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Reports' }, h('table', {},
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Report'), h('th', { scope: 'col', class: 'number' }, 'Written'), h('th', { scope: 'col', class: 'number' }, 'Size'))),
    h('tbody', {}, reports.map(({ name, bytes: size, modified_unix_ms: at }) => h('tr', {}, h('th', { scope: 'row' }, h('a', { href: `#/reports/${encodeURIComponent(name)}` }, name)), h('td', { class: 'number' }, moment(at)), h('td', { class: 'number' }, bytes(size))))))));
}

function unset() {
  return h('div', { class: 'card welcome' }, h('h2', {}, 'No folder of reports'),
    h('p', {}, 'Start the service with a folder to list the reports that backtests and simulations write into it:'),
    h('pre', { tabindex: 0 }, 'evenstep-predictor serve --reports reports\nevenstep-predictor backtest --job my-job --report reports/backtest.html'));
}
