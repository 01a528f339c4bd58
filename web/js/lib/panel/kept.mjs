// @ts-check
/** What this browser remembers of the panel: a switch by its name, off at first. */

const PLACE = "WanTrainer.Panel.";

/** @param {string} name */
export function kept(name) {
  try {
    return localStorage.getItem(PLACE + name) === "on";
  } catch {
    return false; // a browser that keeps nothing
  }
}

/** @param {string} name @param {boolean} on */
export function keep(name, on) {
  try {
    if (on) localStorage.setItem(PLACE + name, "on");
    else localStorage.removeItem(PLACE + name);
  } catch {
    // It holds as long as the page is open.
  }
}
