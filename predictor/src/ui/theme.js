/** Light or dark colours: as the system prefers, or as chosen with the button. */

import { applyTheme } from './charts/colours.js';
import { say, set } from './charts/dom.js';

const KEY = 'evenstep-theme';
const system = matchMedia('(prefers-color-scheme: dark)');
const button = /** @type {HTMLElement} */ (document.getElementById('theme'));

const kept = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
};

/** @param {boolean} dark */
function apply(dark) {
  applyTheme(dark);
  say(button, dark ? '☀ Light' : '☾ Dark');
  set(button, 'aria-label', dark ? 'Switch to the light page' : 'Switch to the dark page');
}

/** Follows the system's preference and the button. */
export function followTheme() {
  apply(document.documentElement.dataset.theme === 'dark');
  system.addEventListener('change', (event) => {
    if (!kept()) apply(event.matches);
  });
  button.addEventListener('click', () => {
    const dark = document.documentElement.dataset.theme !== 'dark';
    try {
      localStorage.setItem(KEY, dark ? 'dark' : 'light');
    } catch {
      // Kept until the page is closed.
    }
    apply(dark);
  });
}
