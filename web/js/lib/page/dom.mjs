// @ts-check
/** Creates elements of the page. Texts are always text nodes, never parsed as HTML. */

/**
 * @typedef {string | Node | null | undefined} Child
 * @typedef {Record<string, string | number | boolean | ((event: any) => void) | null | undefined>} Properties
 */

/**
 * An element with its attributes, listeners (`onclick: handler`) and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties} properties
 * @param {Child[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, String(value));
    }
  }
  fill(made, ...children);
  return made;
}

/**
 * Replaces the children.
 * @param {Element} place
 * @param {Child[]} children
 */
export function fill(place, ...children) {
  const kept = children.filter((child) => child !== null && child !== undefined && child !== "");
  place.replaceChildren(.../** @type {(string | Node)[]} */ (kept));
}

/**
 * Sets a text if it differs; an unchanged text costs no layout.
 * @param {Element} place
 * @param {string} text
 */
export function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

const LONG_WORD = 14;

/**
 * Writes a name that may wrap: it breaks between words, never inside a word.
 * @param {Element} place
 * @param {string} name
 */
export function writeName(place, name) {
  if (place.textContent === name) return;
  const parts = wordsOf(name).flatMap((word) => [
    // A longer word does not fit in one line.
    word.length > LONG_WORD ? word : element("span", { class: "wan-word" }, word),
    element("wbr"),
  ]);
  fill(place, ...parts);
}

/** Splits a name into words, each with its separator; `5e-05` is one word. @param {string} name @returns {string[]} */
export function wordsOf(name) {
  return name.match(/\d[\d.]*e-\d+_?|[^_\s-]*[_\s-]|[^_\s-]+/g) ?? [];
}

/**
 * @param {Element} place
 * @param {string} name
 * @param {string} value
 */
export function mark(place, name, value) {
  if (place.getAttribute(name) !== value) place.setAttribute(name, value);
}

/**
 * A button that keeps focus and name while it is disabled (aria-disabled).
 * @param {string} text
 * @param {string} title
 * @param {(event: Event) => void} press
 */
export function button(text, title, press) {
  const made = element("button", { type: "button", title, class: "wan-button" }, text);
  made.addEventListener("click", (event) => {
    if (made.getAttribute("aria-disabled") !== "true") press(event);
  });
  return made;
}

/** @param {HTMLElement} made @param {boolean} able */
export function enable(made, able) {
  mark(made, "aria-disabled", String(!able));
}

/**
 * A button that is on or off.
 * @param {string} text
 * @param {string} title
 * @param {boolean} on
 * @param {(on: boolean) => void} changed
 */
export function toggle(text, title, on, changed) {
  const made = button(text, title, () => {
    const now = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", String(now));
    changed(now);
  });
  made.setAttribute("aria-pressed", String(on));
  return made;
}

/**
 * Asks for confirmation in `place`; "no" has the focus, and Escape chooses it.
 * @param {HTMLElement} place
 * @param {{ label: string, words: HTMLElement, no: HTMLElement, yes?: HTMLElement, refused: () => void }} asked without `yes` if
 *   there is nothing to confirm
 */
export function ask(place, { label, words, no, yes, refused }) {
  yes?.classList.add("wan-for-good");
  const answers = yes ? [no, yes] : [no];
  const box = element("div", { role: "alertdialog", "aria-label": label }, words, ...answers);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    refused();
  });
  fill(place, box);
  no.focus();
}
