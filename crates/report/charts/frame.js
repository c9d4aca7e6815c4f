/** Drawing in animation frames: a task runs once in the next frame, even if it is requested several times. */

/** @type {Set<() => void>} */
const wanted = new Set();

/** Runs `task` in the next frame. @param {() => void} task */
export function nextFrame(task) {
  if (wanted.size === 0) requestAnimationFrame(work);
  wanted.add(task);
}

function work() {
  const tasks = [...wanted];
  wanted.clear();
  for (const task of tasks) {
    // An error in one task must not prevent the others.
    try {
      task();
    } catch (error) {
      reportError(error);
    }
  }
}

/** @type {WeakMap<Element, (seen: boolean) => void>} */
const watched = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => entries.forEach((entry) => watched.get(entry.target)?.(entry.isIntersecting)),
  { rootMargin: '120px' },
);

/**
 * Draws an element only while it is visible. Call the returned function whenever the data changed, with `true` to draw at once.
 * @param {Element} element @param {() => void} draw
 * @param {number} [everyMs] shortest interval between two drawings, in milliseconds
 * @returns {(atOnce?: boolean) => void}
 */
export function whileVisible(element, draw, everyMs = 0) {
  let seen = false;
  let due = false;
  let waiting = false;
  let drawn = -Infinity;
  const now = () => {
    if (!seen || !due || !element.isConnected) return;
    due = false;
    drawn = performance.now();
    draw();
  };
  watched.set(element, (inView) => {
    seen = inView;
    if (seen && due) nextFrame(now);
  });
  observer.observe(element);
  return (atOnce = false) => {
    due = true;
    if (!seen) return;
    const wait = drawn + everyMs - performance.now();
    if (atOnce || wait <= 0) return nextFrame(now);
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      nextFrame(now);
    }, wait);
  };
}
