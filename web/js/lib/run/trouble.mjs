// @ts-check
/** A failed run in panel and tab: a headline, the full sentence, and the effect of Retry. Pure. */

import { message } from "../page/routes.mjs";
import { failureOf, inANewRun, told } from "../page/server_sentences.mjs";
import { inOneText, t } from "../page/words.mjs";

/**
 * @typedef {{ lead: string, helps: string[] }} Remedies `lead`: the button to press after one of `helps`, best remedy first
 * @typedef {{ headline: string, sentence: string, remedies?: Remedies[], last?: string, retry: string, hint: string, gone?: boolean }} Trouble
 *   `last`: text below the remedies; `retry`: label of the button, empty without one; `hint`: its effect; `gone`: ComfyUI does
 *   not respond, so the log and Retry are not available
 */

/**
 * The newest trained step of a failed run, which may be later than its saved step.
 * @param {{ step: number, reached?: number | null, state: string }} run
 */
export function stepOf(run) {
  return run.state === "failed" ? Math.max(run.reached ?? 0, run.step) : run.step;
}

/**
 * @param {{ state: string, step: number, steps: number, reached?: number | null, reason?: string, live?: boolean,
 *   lora_names?: string[] } | null} run its summary; `step` is the last saved one
 * @param {{ reached?: number | null, said?: string, gone?: number | null, isListed?: boolean }} also `reached`: newest step in
 *   its metrics, if read; `said`: the queue's error; `gone`: last known saved step, or 0, if ComfyUI does not respond;
 *   `isListed`: shown in the list of runs, whose graph may not be open
 * @returns {Trouble | null} null without a failure
 */
export function troubleOf(run, { reached = null, said = "", gone = null, isListed = false } = {}) {
  if (gone !== null) return unanswered(gone);
  const failed = run?.state === "failed" && !run.live;
  if (!failed && !said) return null;
  const reason = said || run?.reason || "";
  const { what, good, again: asBefore, helps, ifAgain } = failureOf(reason);
  const saved = good ?? run?.step ?? 0;
  const anew = helps.filter(inANewRun);
  const same = helps.filter((one) => !inANewRun(one));
  const again = anew.length && !same.length ? { retry: "", hint: "" } : retry(saved);
  const tryAgain = t("To try again, press “{button}”.", { button: again.retry });
  return {
    headline: headline(
      run,
      Math.max(reached ?? 0, run?.reached ?? 0, run?.step ?? 0),
      saved,
      good !== null,
    ),
    sentence: inOneText([
      told(what) || t("No reason was given; the log may have one."),
      told(asBefore),
      ifAgain && tryAgain,
    ]),
    remedies: [
      {
        lead: ifAgain
          ? t(
              "If it ends again, memory is the likely reason. What helps then, best first; after it press “{button}”:",
              { button: again.retry },
            )
          : t("What helps, best first; then press “{button}”:", { button: again.retry }),
        helps: same.map(told),
      },
      {
        lead: anewText(isListed, same.length > 0),
        helps: anew.map((one) => told(inANewRun(one))),
      },
    ].filter((one) => one.helps.length),
    last: inOneText([
      !helps.length && tryAgain,
      saved && anew.length > 0 && t("A new run leaves this one as it is."),
      saved && anew.length ? startFrom(saved, run?.lora_names ?? []) : "",
    ]),
    ...again,
  };
}

/** How to start a new run. @param {boolean} isListed @param {boolean} isSecond whether other remedies come first */
function anewText(isListed, isSecond) {
  if (isListed)
    return isSecond
      ? t(
          "Or open its workflow, change settings there and press Run, which starts a new run at step 0:",
        )
      : t(
          "What helps, best first: open its workflow, change settings there and press Run, which starts a new run at step 0:",
        );
  return isSecond
    ? t("Or change settings and press Run, which starts a new run at step 0:")
    : t("What helps, best first; then press Run, which starts a new run at step 0:");
}

/** How a new run can start from this run's LoRA. @param {number} saved @param {string[]} names the run's LoRAs in the loader lists */
function startFrom(saved, names) {
  const end = `_${String(saved).padStart(6, "0")}.safetensors`;
  const name = names.find((one) => one.endsWith(end)); // of a pair, the high noise LoRA; the node loads the other one too
  if (name)
    return t(
      "A new run can start with the LoRA of saved step {step}: choose {name} in start_from_lora of Train Wan LoRA, at the same rank or a higher one.",
      { step: saved, name },
    );
  return t(
    "A new run can start with the LoRA of saved step {step}: choose it in start_from_lora of Train Wan LoRA, at the same rank or a higher one.",
    { step: saved },
  );
}

/** @param {number} saved @returns {Trouble} */
function unanswered(saved) {
  return {
    headline: inOneText([
      t("ComfyUI does not answer."),
      saved && t("Saved step {step} is kept.", { step: saved }),
    ]),
    sentence: t(
      "If ComfyUI ended, training ended with it. If only the connection broke, training continues. This panel checks again every few seconds; until then it shows the last known state.",
    ),
    last: t(
      "If it ended, start ComfyUI again and press Run: without changes, training resumes after the last saved step; other settings start a new run.",
    ),
    retry: t("Check now"),
    hint: t("Check now whether ComfyUI is running."),
    gone: true,
  };
}

/**
 * @param {{ steps: number } | null} run
 * @param {number} step the newest trained
 * @param {number} saved
 * @param {boolean} isLastGood whether later saved steps exist, but are not usable
 */
function headline(run, step, saved, isLastGood) {
  if (!run || !step) return t("Failed before the first step.");
  const failed = t("Failed after step {step} of {steps}.", { step, steps: run.steps });
  return inOneText([failed, keptText(step, saved, isLastGood)]);
}

/** @param {number} step the newest trained @param {number} saved @param {boolean} isLastGood */
function keptText(step, saved, isLastGood) {
  if (!saved) return t("Nothing was saved yet.");
  if (isLastGood) return t("Saved step {step} is the last good one and is kept.", { step: saved });
  return step > saved
    ? t("Saved step {step} is kept, later steps are lost.", { step: saved })
    : t("Saved step {step} is kept.", { step: saved });
}

/** @param {number} saved */
function retry(saved) {
  return saved
    ? {
        retry: t("Retry from step {step}", { step: saved }),
        hint: t("Same as Run: it resumes after saved step {step}. First follow the advice above.", {
          step: saved,
        }),
      }
    : {
        retry: t("Retry"),
        hint: t("Same as Run: it starts from the beginning. First follow the advice above."),
      };
}

/**
 * Whether a request reached no server: browsers throw a TypeError with browser-specific text.
 * @param {unknown} error
 */
export function findsNobody(error) {
  return error instanceof TypeError;
}

/** Why a run cannot be read. @param {unknown} error */
export function unreadText(error) {
  return findsNobody(error)
    ? t("ComfyUI does not answer.")
    : `⚠ ${t("The run cannot be read: {reason}", { reason: told(message(error)) })}`;
}

/**
 * Text of the button Copy, for a bug report.
 * @param {string} run
 * @param {Trouble} trouble
 * @param {string} log the end of its log
 */
export function report(run, { headline: title, sentence, remedies = [] }, log) {
  const numbered = remedies.flatMap(({ lead, helps }) => [
    lead,
    ...helps.map((one, i) => `${i + 1}. ${one}`),
  ]);
  return [`ComfyUI-WanTrainer, ${run}`, title, sentence, ...numbered, "", log].join("\n").trim();
}
