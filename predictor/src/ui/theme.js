/** Light or dark: as the system has it, or as chosen with the button. */

import { say, set } from './dom.js';

const KEY = 'evenstep-theme';
const system = matchMedia('(prefers-color-scheme: dark)');
const button = /** @type {HTMLElement} */ (document.getElementById('theme'));

/** Told to everything that draws on a canvas. */
export const THEME_CHANGED = 'evenstep-theme-changed';

const kept = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
};

/** @param {boolean} dark */
function apply(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  say(button, dark ? '☀ Light' : '☾ Dark');
  set(button, 'aria-label', dark ? 'Switch to the light page' : 'Switch to the dark page');
  colours.clear();
  dispatchEvent(new Event(THEME_CHANGED));
}

/** @type {Map<string, string>} */
const colours = new Map();

/** A colour of the page as it is now: `colour('--c0')`. @param {string} name */
export function colour(name) {
  let value = colours.get(name);
  if (!value) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    colours.set(name, value);
  }
  return value;
}

/** Begins to follow the system, and the button. */
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
      // Holds until the page is closed.
    }
    apply(dark);
  });
}
