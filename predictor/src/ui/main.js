/** The page: shows the view that the address names. */

import { fill, h, set } from './charts/dom.js';
import { quiet } from './connection.js';
import { offerSignOut, signIn } from './session.js';
import { followTheme } from './theme.js';
import { jobsPage } from './views/jobs.js';
import { jobPage } from './views/job.js';
import { workerPage } from './views/worker.js';
import { nodesPage } from './views/nodes.js';
import { nodePage } from './views/node.js';
import { reportsPage } from './views/reports.js';
import { glossaryPage } from './views/glossary.js';
import { storePage } from './views/store.js';

/**
 * A view fills the page and updates it until the signal is aborted.
 * @typedef {(content: HTMLElement, name: string, signal: AbortSignal, inside: string) => void} View `inside`: the worker of the job `name`
 */

/** @type {[RegExp, View, string][]} */
const VIEWS = [
  [/^#?\/?$/, jobsPage, 'Jobs'],
  [/^#\/jobs\/([^/]+)\/workers\/(.+)$/, workerPage, 'Jobs'],
  [/^#\/jobs\/(.+)$/, jobPage, 'Jobs'],
  [/^#\/nodes$/, nodesPage, 'Nodes'],
  [/^#\/nodes\/(.+)$/, nodePage, 'Nodes'],
  [/^#\/reports$/, reportsPage, 'Reports'],
  [/^#\/reports\/(.+)$/, reportsPage, 'Reports'],
  [/^#\/store$/, storePage, 'Store'],
  [/^#\/glossary$/, glossaryPage, 'Glossary'],
];
/** Time after which a hidden page closes its connection. Browsers allow six connections per host, over all tabs. */
const HIDDEN_MS = 30_000;

const content = /** @type {HTMLElement} */ (document.getElementById('content'));
let current = new AbortController();

/** @param {boolean} moved whether the user came from another view */
function open(moved) {
  current.abort();
  current = new AbortController();
  const hash = location.hash.split('?')[0];
  const found = VIEWS.find(([pattern]) => pattern.test(hash));
  const [name, inside] = [1, 2].map((group) => decode(found?.[0].exec(hash)?.[group] ?? ''));
  for (const link of document.querySelectorAll('nav a')) {
    set(link, 'aria-current', link.textContent === found?.[2] ? 'page' : null);
  }
  if (!found || name == null || inside == null) {
    fill(content, h('h1', { tabindex: -1 }, 'No such page'), h('p', { class: 'empty' }, 'This address does not exist. ', h('a', { href: '#/' }, 'All jobs'), '.'));
  } else {
    document.title = `${inside || name || found[2]} · evenstep`;
    found[1](content, name, current.signal, inside);
  }
  if (!moved) return;
  scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (content.querySelector('h1'))?.focus({ preventScroll: true });
}

/** @param {string} text @returns {string | null} null if it is not valid */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let leaving;
let asleep = false;
document.addEventListener('visibilitychange', () => {
  clearTimeout(leaving);
  if (document.hidden) {
    leaving = setTimeout(() => {
      asleep = true;
      current.abort();
    }, HIDDEN_MS);
  } else if (asleep) {
    asleep = false;
    open(false);
  }
});

document.querySelector('.skip')?.addEventListener('click', (event) => {
  // The address names the view, so this link must not change it.
  event.preventDefault();
  content.focus();
});
addEventListener('hashchange', () => {
  // Back, with an open dialog: it belongs to the page before.
  document.querySelector('dialog')?.close();
  open(true);
});
addEventListener('token-required', (event) => {
  if (content.querySelector('.sign-in')) return;
  current.abort();
  current = new AbortController();
  quiet();
  signIn(content, /** @type {CustomEvent<string>} */ (event).detail, begin);
});

/** Opens the page at the beginning, and when a session begins or ends. */
function begin() {
  void offerSignOut(begin);
  open(false);
}

followTheme();
begin();
