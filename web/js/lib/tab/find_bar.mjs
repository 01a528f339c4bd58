// @ts-check
/** The bar above the table: search, grouping, number of found runs, and CSV files. */

import { button, element, toggle, write } from "../page/dom.mjs";
import { counted, inOneText, t } from "../page/words.mjs";
import { stateName } from "../run/names.mjs";

const STATES = ["running", "done", "stopped", "failed"];

export class FindBar {
  /** @param {{ changed: () => void, grouped: (on: boolean) => void, saveTable: () => void }} actions */
  constructor({ changed, grouped, saveTable }) {
    this.find = element("input", {
      type: "search",
      placeholder: t("Find: name, rank:8, lr:1e-4"),
      "aria-label": t("Find runs by name or setting"),
      oninput: changed,
    });
    /** Covers the table head while the field has the focus, so that the layout does not move. */
    this.hint = element("p", { class: "wan-find-help", role: "status" });
    this.state = element(
      "select",
      { "aria-label": t("Runs of this state"), onchange: changed },
      element("option", { value: "" }, t("all states")),
      ...STATES.map((state) => element("option", { value: state }, stateName(state))),
    );
    this.count = element("span", { class: "wan-count", role: "status" });
    this.element = element(
      "div",
      { class: "wan-found", role: "search" },
      this.find,
      this.state,
      toggle(
        t("Group by name"),
        t("Runs of one name together, the best of each in bold"),
        false,
        grouped,
      ),
      button("CSV", t("Save the table as a CSV file"), saveTable),
      this.count,
      element("span", { class: "wan-count" }, t("tick to compare")),
      this.hint,
    );
  }

  /** @param {string[]} names settings that differ between runs @param {string} unknown searched name without a setting */
  help(names, unknown) {
    const differ = names.length && t("The runs differ in {names}.", { names: names.join(", ") });
    const how = inOneText([t("Words of a name, or name:value of a setting."), differ]);
    write(this.hint, unknown ? t("No setting is called “{name}”.", { name: unknown }) : how);
  }

  /** The search text. */
  get asked() {
    return { words: this.find.value, state: this.state.value };
  }

  /** @param {number} found @param {number} all */
  tell(found, all) {
    write(this.count, found === all ? runCount(all) : t("{n} of {all}", { n: found, all }));
  }
}

/** @param {number} n */
function runCount(n) {
  return counted(n, "1 run", "{n} runs");
}
