/** Marks of workers: Okabe and Ito's colours, which readers with any colour vision can distinguish, and a letter for
 * each, so that no information is shown by colour alone.
 */

/** Limit of workers that are shown individually. */
export const SHOWN_MAX = 6;

/** @typedef {{ letter: string, colour: string, place: number }} Mark */

/** The mark of the worker at a position. @param {number} place @returns {Mark} */
export const markOf = (place) => ({ letter: 'ABCDEF'[place], colour: `--c${place}`, place });

/** Dashes of expected values. */
export const DASHED = [6, 5];
/** Dots of values with even shares. */
export const DOTTED = [2, 4];
