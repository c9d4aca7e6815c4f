/** Work that shows something waits for the next frame, and is done once however often it was asked for. */

/** @type {Set<() => void>} */
const wanted = new Set();

/** Does `task` in the next frame. @param {() => void} task */
export function nextFrame(task) {
  if (wanted.size === 0) requestAnimationFrame(work);
  wanted.add(task);
}

function work() {
  const tasks = [...wanted];
  wanted.clear();
  for (const task of tasks) {
    // One that fails must not keep the others from being drawn.
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
 * What draws an element only while somebody can see it: call the returned function whenever there is something new, with `true` where
 * somebody waits for it.
 * @param {Element} element @param {() => void} draw
 * @param {number} [everyMs] from one time to the next, at least: of what moves by less than a point nobody sees more
 * @returns {(atOnce?: boolean) => void}
 */
export function whileSeen(element, draw, everyMs = 0) {
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
