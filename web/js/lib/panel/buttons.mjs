// @ts-check
/** The buttons of a run: three that steer it while it trains here, and one that shows its folder. */

import { button, element } from "../page/dom.mjs";
import { t } from "../page/words.mjs";

/** @typedef {"stop" | "save" | "sample" | "open"} Action */

export class Buttons {
  /** @param {(action: Action, said: string) => void} act `said`: message for the user after success */
  constructor(act) {
    const press = (/** @type {Action} */ action, /** @type {string} */ said) => () =>
      act(action, said);
    /** The button in the headline. */
    this.stop = button(
      t("Stop and keep"),
      t("Save, stop, and let the graph continue. Press Run again to resume."),
      press("stop", t("Stopping …")),
    );
    this.save = button(
      t("Save now"),
      t("Save after this step, and continue training."),
      press("save", t("Saving …")),
    );
    this.sample = button(
      t("Preview now"),
      t("Render a preview after this step, and continue training."),
      press("sample", t("Rendering a preview …")),
    );
    this.open = button(
      t("Open folder"),
      t("Show the run's folder on the computer ComfyUI runs on."),
      press("open", t("Folder opened.")),
    );
    this.element = element(
      "div",
      { class: "wan-buttons", role: "group", "aria-label": t("Control the run") },
      this.save,
      this.sample,
      this.open,
    );
  }

  /** @param {{ run: string | null, live: boolean, canPreview: boolean }} state */
  draw({ run, live, canPreview }) {
    for (const one of [this.stop, this.save]) one.hidden = !live;
    this.sample.hidden = !live || !canPreview;
    this.open.hidden = run === null;
  }
}
