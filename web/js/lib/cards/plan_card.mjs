// @ts-check
/** The card of Plan Memory: its report, and a timeline of each GPU in a step. */

import { element, fill } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { Card, notYet } from "./card.mjs";
import { text } from "./lists.mjs";
import { timeline } from "./timeline.mjs";

export class PlanCard extends Card {
  /** @param {import("../page/pacing.mjs").Frames} frames @param {() => void} grew */
  constructor(frames, grew) {
    super(frames, { label: t("Memory before training"), kind: "plan", grew });
    this.show(null);
  }

  /** @param {import("./card_facts.mjs").Facts | null} facts `report` as text, and `cards` of the plan */
  show(facts) {
    if (!facts)
      fill(
        this.body,
        notYet(t("Shows how much memory a training needs, and when each GPU works.")),
      );
    else
      fill(
        this.body,
        facts.cards ? timeline(facts.cards) : null,
        element("pre", { class: "wan-report" }, text(facts.report)),
      );
    this.ask();
  }
}
