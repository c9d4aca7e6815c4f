/**
 * How workers are told apart: Okabe and Ito's colours, which readers with any colour vision tell apart, and a letter beside each,
 * so that nothing is said by colour alone.
 */

/** So many workers are shown one by one; the others are a grey whole. */
export const SHOWN_MAX = 6;

/** @typedef {{ letter: string, colour: string, place: number }} Mark */

/** The mark of the worker that is shown at a place. @param {number} place @returns {Mark} */
export const markOf = (place) => ({ letter: 'ABCDEF'[place], colour: `--c${place}`, place });

/** What was expected: dashed, everywhere. */
export const DASHED = [6, 5];
/** What even shares would have taken: dotted, everywhere. */
export const DOTTED = [2, 4];
