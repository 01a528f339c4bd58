// @ts-check
/** Switches of the panel in localStorage, by name; off by default. */

const PLACE = "WanTrainer.Panel.";

/** @param {string} name */
export function kept(name) {
  try {
    return localStorage.getItem(PLACE + name) === "on";
  } catch {
    return false; // storage is forbidden
  }
}

/** @param {string} name @param {boolean} on */
export function keep(name, on) {
  try {
    if (on) localStorage.setItem(PLACE + name, "on");
    else localStorage.removeItem(PLACE + name);
  } catch {
    // Storage is full or forbidden: the switch is lost with the page.
  }
}
