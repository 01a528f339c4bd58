// @ts-check
/** The box below the curve of an ended run: the name of its LoRA, and how to use it. */

import { button, element, fill, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { loraNames } from "../run/names.mjs";

/** Milliseconds for which the button shows "Copied". */
const SAID = 2000;

export class UseBox {
  /** @param {(text: string) => Promise<boolean>} copy copies to the clipboard; resolves to whether it worked */
  constructor(copy) {
    /** LoRA names in the loader lists, one per line. */
    this.text = "";
    this.names = element("span", { class: "wan-use-names" });
    this.copy = button(t("Copy"), t("Copy the name as LoRA loaders list it"), async () => {
      if (!(await copy(this.text))) return;
      write(this.copy, t("Copied."));
      setTimeout(() => write(this.copy, t("Copy")), SAID);
    });
    /** Further buttons, if the server can create a graph for the run. */
    this.actions = element("span", { class: "wan-use-actions" });
    this.trigger = element("p", {});
    /** The ComfyUI template to use, for models with more inputs than text and one picture. */
    this.place = element("p", {});
    this.element = element(
      "section",
      { class: "wan-use", "aria-label": t("Use the LoRA"), hidden: true },
      element("strong", {}, t("Use it:")),
      this.names,
      element("span", { class: "wan-use-buttons" }, this.copy, this.actions),
      this.trigger,
      this.place,
    );
  }

  /** @param {import("../page/routes.mjs").Detail | null} detail of an ended run; null hides the box */
  draw(detail) {
    const names = detail ? loraNames(detail) : "";
    this.element.hidden = !names;
    if (this.text !== names)
      fill(this.names, ...names.split("\n").map((name) => element("span", {}, name)));
    this.text = names;
    this.actions.hidden = !detail?.can_generate;
    const words = detail?.use?.at(-1)?.trigger;
    write(this.trigger, words ? t("Write {words} into the prompt.", { words }) : "");
    this.trigger.hidden = !words;
    this.place.hidden = detail?.can_generate !== false;
    write(this.place, this.place.hidden ? "" : placeOf(detail?.template));
  }
}

/** @param {string | undefined} template name of ComfyUI's template for the run's model */
function placeOf(template) {
  return template
    ? t("No workflow is ready for this model: use the LoRA in ComfyUI's template {template}.", {
        template,
      })
    : t("No workflow is ready for this model: use the LoRA in your own, with Apply Wan LoRA.");
}
