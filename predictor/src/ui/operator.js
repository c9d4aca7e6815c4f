/** The dialog for overrides of a worker, if the service has an operator token. The token is kept until the tab is
 * closed, and only sent to the service.
 */

import { ask, ofJob, read, Refused } from './api.js';
import { fill, h } from './charts/dom.js';
import { count } from './charts/format.js';

const KEY = 'evenstep-operator-token';
/** The token if the browser stores nothing; kept until the page is closed. @type {string | null} */
let inMemory = null;
/** Whether the session of the page allows overrides, so that no token is needed. */
let isAllowed = false;

function token() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return inMemory;
  }
}

/** @param {string | null} value */
function keep(value) {
  inMemory = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Kept in memory instead.
  }
}

/** Whether the page offers overrides. @param {AbortSignal} signal @returns {Promise<boolean>} */
export async function offered(signal) {
  try {
    const operator = await read('v1/operator', signal);
    isAllowed = operator.allowed === true;
    return operator.token_set === true;
  } catch (error) {
    if (error instanceof Refused) return false;
    throw error;
  }
}

/** The text of an override. @param {any} wanted @param {string} [unit] @returns {string | null} */
export function overrideWords(wanted, unit = 'samples') {
  if (!wanted) return null;
  if (wanted.paused) return 'paused by an operator';
  if (wanted.pinned_local_batch != null) return `pinned to ${count(wanted.pinned_local_batch)} ${unit}`;
  const bounds = [wanted.min_local_batch != null && `at least ${wanted.min_local_batch}`, wanted.max_local_batch != null && `at most ${wanted.max_local_batch}`].filter(Boolean);
  return bounds.length ? `${bounds.join(', ')} by an operator` : null;
}

/** @type {[string, string, string][]} */
const CHOICES = [
  ['lift', 'Let evenstep decide', 'Removes the override.'],
  ['pause', 'Pause it', 'The worker gets no samples and stays a member.'],
  ['pin', 'Pin its batch', 'The worker gets exactly this number of samples.'],
  ['bound', 'Bound its batch', 'Minimum and maximum; an empty field sets no bound.'],
];

/**
 * Opens the dialog for overrides of a worker.
 * @param {string} job @param {any} worker as in the service's view @param {(words: string) => void} done called with the text of the new override
 * @param {string} unit
 */
export function change(job, worker, done, unit) {
  const wanted = worker.override ?? {};
  const now = wanted.paused ? 'pause' : wanted.pinned_local_batch != null ? 'pin' : wanted.min_local_batch != null || wanted.max_local_batch != null ? 'bound' : 'lift';
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ value) =>
    h('label', { class: 'field' }, label, h('input', { name, type: 'number', min: 0, step: 1, inputmode: 'numeric', value: value ?? null }));
  /** @type {Record<string, any>} */
  const fields = {
    pin: [field('pinned', `Batch in ${unit}`, wanted.pinned_local_batch)],
    bound: [field('least', 'At least', wanted.min_local_batch), field('most', 'At most', wanted.max_local_batch)],
  };
  const error = h('p', { class: 'error', role: 'alert' });
  const password = h('input', { name: 'token', type: 'password', autocomplete: 'off', 'aria-describedby': 'token-note' });
  const secret = h('label', { class: 'field' }, 'Operator token', password, h('span', { class: 'note', id: 'token-note' }, 'The token of serve --operator-token. Kept until this tab is closed.'));
  secret.hidden = isAllowed || token() != null;
  const save = h('button', { type: 'submit', class: 'primary' }, 'Apply');
  const form = h('form', { novalidate: true, onsubmit: (/** @type {Event} */ event) => void send(event), onchange: () => unfold() },
    h('h2', { id: 'change-title' }, `Override ${worker.worker}`),
    h('p', { class: 'soft' }, 'Applies from the next iteration that was not requested yet, until it is removed.'),
    h('fieldset', {}, h('legend', { class: 'unseen' }, 'Override'),
      CHOICES.map(([value, name, note]) => h('div', { class: 'choice' }, h('label', {}, h('input', { type: 'radio', name: 'what', value, checked: value === now }), h('span', {}, h('b', {}, name), h('span', { class: 'note' }, note))), fields[value] && h('div', { class: 'row under', 'data-of': value }, fields[value])))),
    secret, error,
    h('div', { class: 'row end' },
      h('button', { type: 'button', class: 'quiet', hidden: token() == null, onclick: (/** @type {any} */ event) => { keep(null); secret.hidden = false; event.target.hidden = true; password.focus(); } }, 'Forget the token'),
      h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'), save));
  const dialog = h('dialog', { 'aria-labelledby': 'change-title', onclose: () => dialog.remove() }, form);
  const value = (/** @type {string} */ name) => {
    const text = form.elements.namedItem(name)?.value ?? '';
    return text === '' ? null : Number(text);
  };
  function unfold() {
    for (const part of form.querySelectorAll('[data-of]')) part.hidden = part.dataset.of !== form.elements.namedItem('what').value;
  }

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    const what = form.elements.namedItem('what').value;
    if (what === 'pin' && value('pinned') == null) return fill(error, 'Enter the number of samples.');
    if (what === 'bound' && value('least') == null && value('most') == null) return fill(error, 'Enter at least one of the two bounds.');
    if (password.value) keep(password.value);
    if (!isAllowed && !token()) {
      password.focus();
      return fill(error, 'Enter the operator token of the service.');
    }
    fill(error);
    save.disabled = true;
    const body = what === 'pause' ? { paused: true } : what === 'pin' ? { pinned_local_batch: value('pinned') } : what === 'bound' ? { ...(value('least') != null && { min_local_batch: value('least') }), ...(value('most') != null && { max_local_batch: value('most') }) } : undefined;
    try {
      await ask(body ? 'PUT' : 'DELETE', ofJob(job, `/workers/${encodeURIComponent(worker.worker)}/override`), { body, token: token() });
      dialog.close();
      done(`${worker.worker}: ${overrideWords(body, unit) ?? 'evenstep decides again'}, from the next iteration on.`);
    } catch (failure) {
      const refused = /** @type {Refused} */ (failure);
      if (refused.status === 401 || refused.status === 403) {
        keep(null);
        secret.hidden = false;
        password.value = '';
        password.focus();
      }
      fill(error, refused.message);
    } finally {
      save.disabled = false;
    }
  }

  document.body.append(dialog);
  unfold();
  dialog.showModal();
}
