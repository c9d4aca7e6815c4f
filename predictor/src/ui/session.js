/** Signing in, if the service requires tokens. The page exchanges a token for a cookie that scripts cannot read, so it does
 * not keep the token.
 */

import { ask, read, Refused } from './api.js';
import { fill, h } from './charts/dom.js';

const button = /** @type {HTMLButtonElement} */ (document.getElementById('sign-out'));

/**
 * Shows the form in place of a view.
 * @param {HTMLElement} content @param {string} why @param {() => void} done called when the session has begun
 */
export function signIn(content, why, done) {
  button.hidden = true;
  const password = h('input', { name: 'token', type: 'password', autocomplete: 'off', required: true });
  const error = h('p', { class: 'error', role: 'alert' });
  const submit = h('button', { type: 'submit', class: 'primary' }, 'Sign in');
  const form = h('form', { class: 'sign-in', onsubmit: (/** @type {Event} */ event) => void send(event) },
    h('h1', { tabindex: -1 }, 'Sign in'),
    h('p', { class: 'soft' }, why),
    h('label', { class: 'field' }, 'Token', password, h('span', { class: 'note' }, 'Created by evenstep-predictor token create. The session ends after 12 hours.')),
    error, h('div', { class: 'row end' }, submit));

  /** @param {Event} event */
  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    try {
      await ask('POST', 'v1/session', { body: { token: password.value.trim() } });
      done();
    } catch (failure) {
      fill(error, /** @type {Refused} */ (failure).message);
      password.value = '';
      password.focus();
    } finally {
      submit.disabled = false;
    }
  }

  fill(content, form);
  password.focus();
}

/** Shows the button to sign out, if there is a session. @param {() => void} done called when the session has ended */
export async function offerSignOut(done) {
  const session = await read('v1/session').catch(() => null);
  button.hidden = !session?.token_id;
  button.title = session?.token_id ? `Token ${session.token_id}: ${session.scopes.join(', ')} of ${session.jobs}` : '';
  button.onclick = () => void ask('DELETE', 'v1/session').then(done, done);
}
