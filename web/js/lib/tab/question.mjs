// @ts-check
/** What is asked before something goes for good: nothing goes without an answer, and the answer at hand is no. */

import { element, fill } from "../page/dom.mjs";

/**
 * Ask in `place`; Escape is a no.
 * @param {HTMLElement} place
 * @param {{ label: string, words: HTMLElement, no: HTMLElement, yes?: HTMLElement, refused: () => void }} asked `yes` is left out where
 *   nothing can go
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
