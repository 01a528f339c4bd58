// @ts-check
/** The run opened in the list: name, state and actions. Deleting needs a confirmation. */

import { list, text } from "../cards/lists.mjs";
import {
  ask,
  button,
  element,
  enable,
  fill,
  mark,
  toggle,
  write,
  writeName,
} from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { inOneText, t } from "../page/words.mjs";
import { TroubleBox } from "../panel/trouble_box.mjs";
import { ago, clock, gib, known, short } from "../run/format.mjs";
import { expertName, loraNames, stateName } from "../run/names.mjs";
import { stepOf } from "../run/trouble.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {{ open: (run: string) => void, resume: (run: string) => void, copy: (name: string) => void,
 *   use: (run: string) => void, remove: (run: string) => void, close: () => void,
 *   bytes: (run: string) => Promise<number | null>, log: (run: string) => Promise<string>, say: (text: string) => void, take: (text: string) => Promise<void>,
 *   previews: (run: string) => void, clips: (run: string) => import("./run_clips.mjs").RunClips }} Actions
 */

const MOST_NAMES = 3;
/**
 * The known numbers of a run in one line.
 * @param {Summary} run
 * @param {number} now unix seconds
 */
export function cardText(run, now) {
  const left = run.live ? clock(run.seconds_left) : "";
  const loss = short(run.loss, 4);
  const parts = [
    t("step {step} / {steps}", { step: stepOf(run), steps: run.steps }),
    left && t("{time} left", { time: left }),
    loss && t("loss {loss}", { loss }),
    evaluationText(run),
    known(run.best) ? t("★ step {step}", { step: run.best }) : "",
    run.variant,
    expertName(run.expert ?? ""),
    run.updated ? ago(now - run.updated) : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/**
 * The result of deleting a run.
 * @param {string} run
 * @param {{ kept?: unknown, freed?: number }} answer `kept`: names of remaining files; `freed`: bytes
 */
export function deletedText(run, { kept, freed }) {
  const own = list(kept).map(text).filter(Boolean);
  return inOneText([
    t(
      "Deleted “{run}”. Its saved steps are deleted, so Run on its graph starts at step 0; its LoRAs in the loader lists and the cached clips are kept.",
      { run },
    ),
    freed ? t("{size} are free again.", { size: gib(freed) }) : "",
    own.length && t("Your own files stay in its folder: {names}.", { names: own.join(", ") }),
  ]);
}

/**
 * The question before deleting a run, in paragraphs: deleted files, remaining files, freed bytes.
 * @param {string} run
 * @param {string[]} loras names of its LoRAs in the loader lists
 * @param {number | null} bytes to be freed; null if unknown
 */
export function question(run, loras, bytes) {
  const names = loras
    .slice(0, MOST_NAMES)
    .map((name) => name.replace(/\.safetensors$/, ""))
    .join(", ");
  const count = loras.length - MOST_NAMES;
  return [
    t(
      "Delete the run “{run}” with its saved steps and previews? This cannot be undone; Run on its graph would start at step 0.",
      { run },
    ),
    inOneText([
      t("What is kept: cached clips, your own files, and LoRAs in the loader lists."),
      names &&
        t("LoRAs of this run in the loader lists: {names}.", {
          names: count > 0 ? t("{names} and {count} more", { names, count }) : names,
        }),
    ]),
    bytes ? t("Deleting it frees {size}.", { size: gib(bytes) }) : "",
  ].filter(Boolean);
}

/** The newest evaluation; empty before the first. @param {Summary} run */
function evaluationText(run) {
  const loss = short(run.eval_loss, 4);
  if (!loss && !known(run.eval_step)) return "";
  const expert = expertName(run.eval_expert ?? "");
  let said = t("evaluation {loss}", { loss });
  if (!loss) said = t("evaluation not finite at step {step}", { step: run.eval_step ?? 0 });
  else if (run.eval_held_out === false) said = t("evaluation {loss} on training clips", { loss });
  return expert ? `${said} (${t("{expert} expert", { expert })})` : said;
}

export class RunCard {
  /** @param {string} id @param {Actions} actions */
  constructor(id, actions) {
    this.id = id;
    this.actions = actions;
    /** @type {Summary | null} */
    this.run = null;
    this.name = element("strong", { title: id });
    writeName(this.name, id);
    this.state = element("span", { class: "wan-chip" });
    this.numbers = element("div", { class: "wan-numbers" });
    this.reason = element("div", { class: "wan-reason" });
    const page = { queue: async () => actions.resume(id), copy: actions.take };
    this.trouble = new TroubleBox({ ...page, isListed: true }, actions, actions.say);
    this.question = element("div", { class: "wan-question" });
    /** Created at the first use. @type {import("./run_clips.mjs").RunClips | null} */
    this.clips = null;
    this.buttons = this.buildButtons();
    const close = button("×", t("Close {run}", { run: id }), () => actions.close());
    mark(close, "aria-label", t("Close {run}", { run: id }));
    this.element = element(
      "section",
      { class: "wan-run", "aria-label": id },
      element(
        "div",
        { class: "wan-run-head" },
        this.name,
        element("span", { class: "wan-run-state" }, this.state, close),
      ),
      this.numbers,
      this.reason,
      this.trouble.element,
      element("div", { class: "wan-buttons" }, ...Object.values(this.buttons)),
      this.question,
    );
  }

  buildButtons() {
    const { id, actions } = this;
    const run = { run: id };
    return {
      clips: toggle(t("Clips"), t("Show the clips of {run}", run), false, (on) => this.show(on)),
      previews: button(t("All previews"), t("Prompts by saved steps, on one page"), () =>
        actions.previews(id),
      ),
      open: button(t("Open workflow"), t("Open the graph that trains {run}", run), () =>
        actions.open(id),
      ),
      use: button(t("Use as LoRA"), t("Put the LoRA of {run} among ComfyUI's LoRAs", run), () =>
        actions.use(id),
      ),
      copy: button(t("Copy LoRA name"), t("Copy the name loader lists show for {run}", run), () =>
        actions.copy(loraNames(this.run)),
      ),
      resume: button(t("Resume"), t("Open the graph of {run} and queue it", run), () =>
        actions.resume(id),
      ),
      remove: button(t("Delete …"), t("Delete {run}", run), () => this.ask()),
    };
  }

  /** @param {Summary} run @param {number} now unix seconds */
  update(run, now) {
    const isNews = run.step !== this.run?.step || run.state !== this.run?.state;
    if (this.run && isNews) this.clips?.read();
    this.run = run;
    write(this.state, stateName(run.state));
    mark(this.state, "data-state", run.live ? "active" : "seen");
    write(this.numbers, cardText(run, now));
    mark(this.numbers, "title", told(run.best_why ?? ""));
    mark(this.state, "data-run-state", run.state);
    write(this.reason, ["done", "failed"].includes(run.state) ? "" : told(run.reason ?? ""));
    this.trouble.draw(this.id, run);
    const listed = Boolean(run.lora_names?.length);
    this.buttons.previews.hidden = !run.preview;
    enable(this.buttons.copy, listed);
    this.buttons.use.hidden = listed || run.live === true || !run.step;
    enable(this.buttons.resume, !run.live && run.state !== "done");
    enable(this.buttons.remove, !run.live);
  }

  /** @param {boolean} on whether to show the clips */
  show(on) {
    if (!on) {
      this.clips?.element.remove();
      this.clips = null;
      return;
    }
    this.clips = this.actions.clips(this.id);
    this.element.append(this.clips.element);
    this.clips.read();
  }

  ask() {
    const run = { run: this.id };
    const no = button(t("Keep it"), t("Delete nothing"), () => this.answered(false));
    const yes = button(t("Delete"), t("Delete {run} for good", run), () => this.answered(true));
    const words = element("div", { class: "wan-asked" });
    const say = (/** @type {number | null} */ bytes) =>
      fill(
        words,
        ...question(this.id, this.run?.lora_names ?? [], bytes).map((text) =>
          element("p", {}, text),
        ),
      );
    say(null);
    this.actions.bytes(this.id).then(say, () => {}); // after an error the size is omitted
    const refused = () => this.answered(false);
    ask(this.question, { label: t("Delete {run}?", run), words, no, yes, refused });
  }

  /** @param {boolean} yes */
  answered(yes) {
    fill(this.question);
    this.buttons.remove.focus();
    if (yes) this.actions.remove(this.id);
  }
}
