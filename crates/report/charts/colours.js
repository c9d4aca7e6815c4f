/** The current colours of the page, for drawing on a canvas. */

/** Event that notifies everything that draws on a canvas of a change of colours. */
export const THEME_CHANGED = 'evenstep-theme-changed';

/** @type {Map<string, string>} */
const colours = new Map();

/** Returns a colour of the page: `colour('--c0')`. @param {string} name */
export function colour(name) {
  let value = colours.get(name);
  if (!value) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    colours.set(name, value);
  }
  return value;
}

/** Switches the page to its light or dark colours. @param {boolean} dark */
export function applyTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  colours.clear();
  dispatchEvent(new Event(THEME_CHANGED));
}
