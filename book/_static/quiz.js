// A quiz answers: an option that is chosen says whether it is right. What a reader chose
// first stays in the browser alone, and one click erases it.
"use strict";

const QUIZ = "normbook-quiz";

/** First choices: by page, then by question, from 0, the option, and whether it is right. */
function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(QUIZ));
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {}; // nothing can be kept, or it is not ours
  }
}

function keep(choices) {
  try {
    if (choices) localStorage.setItem(QUIZ, JSON.stringify(choices));
    else localStorage.removeItem(QUIZ);
  } catch {
    // A page from a disk may keep nothing.
  }
}

/** The options of each question: those that follow the same paragraph. */
function questions() {
  const found = new Map();
  for (const option of document.querySelectorAll("article details.quiz-option")) {
    let asked = option.previousElementSibling;
    while (asked?.matches("details.quiz-option")) asked = asked.previousElementSibling;
    if (!found.has(asked)) found.set(asked, []);
    found.get(asked).push(option);
  }
  return [...found.values()];
}

const isRight = (option) => option.classList.contains("quiz-right");

function sayVerdict(option) {
  if (option.querySelector(".quiz-verdict")) return;
  const verdict = document.createElement("span");
  verdict.className = "quiz-verdict";
  verdict.textContent = isRight(option) ? "right" : "not so";
  option.querySelector("summary").append(" ", verdict);
}

const count = (choices) => {
  const all = choices.flatMap((page) => Object.values(page ?? {}));
  return [all.length, all.filter((choice) => choice.right).length];
};

function addQuiz(asked) {
  const page = location.pathname.split("/").pop().replace(/\.html$/, "");
  const told = document.createElement("p");
  told.className = "quiz-progress";
  const words = document.createElement("span");
  words.setAttribute("role", "status");
  const forget = document.createElement("button");
  forget.type = "button";
  forget.className = "all-code";
  forget.textContent = "Forget my answers, on all pages";
  told.append(words, " ", forget);
  asked.at(-1).at(-1).after(told);

  const show = () => {
    const choices = kept();
    const [here, right] = count([choices[page]]);
    const [all, allRight] = count(Object.values(choices));
    words.textContent =
      `Here: ${here} of ${asked.length} answered, ${right} right at the first try. ` +
      `In the whole book: ${all} answered, ${allRight} right at the first try.`;
    forget.hidden = all === 0;
  };
  asked.forEach((options, question) => {
    const first = kept()[page]?.[question];
    if (options[first?.option]) sayVerdict(options[first.option]);
    options.forEach((option, place) =>
      // By pointer or keyboard; what a link or a search opens is no answer.
      option.querySelector("summary").addEventListener("click", () => {
        sayVerdict(option);
        const choices = kept();
        if (choices[page]?.[question]) return;
        const choice = { option: place, right: isRight(option) };
        choices[page] = { ...choices[page], [question]: choice };
        keep(choices);
        show();
      }),
    );
  });
  forget.addEventListener("click", () => {
    keep(null);
    for (const verdict of document.querySelectorAll(".quiz-verdict")) verdict.remove();
    for (const option of asked.flat()) option.open = false;
    show();
    asked[0][0].querySelector("summary").focus();
  });
  show();
}

const asked = questions();
if (asked.length > 0) addQuiz(asked);
