"""The gallery of failures is found by its symptoms, and every entry of it has run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import notebook_rules
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
(CHAPTER,) = (
    page
    for part in TOC["parts"]
    for page in part["chapters"]
    if page["file"] == "book/train_and_eval"
)


def cells_of(page: str) -> list[Any]:
    """Return the cells of a page."""
    cells: list[Any] = nbformat.read(ROOT / f"{page}.ipynb", as_version=4).cells
    return cells


# The page of the index, then the pages of failures in their order.
PAGES = {page: cells_of(page) for page in notebook_rules.pages({"chapters": [CHAPTER]})}
INDEX, *FAILURES = PAGES
CELLS = [cell for cells in PAGES.values() for cell in cells]
ENTRY = re.compile(r"(?m)^\((gal-[a-z-]+)\)=\n## +\S.*$")
ROW = re.compile(r"(?m)^\| \{ref\}`(gal-[a-z-]+)` \| +\S.* \|$")
SCRIPT = ROOT / "book/_static/symptom_index.js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="the script of a page needs node")


def entries(cells: Any) -> dict[str, list[Any]]:
    """Return the code cells of each entry by its label, up to the next heading."""
    found: dict[str, list[Any]] = {}
    label = None
    for cell in cells:
        if cell.cell_type == "markdown":
            if re.search(r"(?m)^#+ ", cell.source):
                starts = ENTRY.findall(cell.source)
                label = starts[-1] if starts else None
                found.update((start, []) for start in starts)
        elif label is not None:
            found[label].append(cell)
    return found


def index(cells: Any) -> list[str]:
    """Return the labels that the table of symptoms links to, in its order."""
    return [m for cell in cells for m in ROW.findall(cell.source)]


def test_the_gallery_has_entries() -> None:
    assert entries(CELLS), "without entries the tests below check nothing"


def test_every_entry_stands_in_the_index_once_and_in_order() -> None:
    assert index(CELLS) == list(entries(CELLS))


def groups(cells: Any) -> dict[str, str]:
    """Return what the index holds under each heading."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = re.findall(r"(?ms)^:::\{dropdown\} ([^\n]*)\n(.*?)^:::$", text)
    return {title: rows for title, rows in found if ":class: symptom-index" in rows}


def test_every_group_of_the_index_is_a_page() -> None:
    *kinds, others = groups(PAGES[INDEX]).items()
    assert others[0] == "Settled in other chapters"
    for (title, rows), page in zip(kinds, FAILURES, strict=True):
        head = PAGES[page][0].source
        assert re.search(r"(?m)^# Failures: (.*)$", head)[1] == title.lower()  # type: ignore[index]
        assert f"{{doc}}`{page.removeprefix('book/')}`" in rows
        assert ROW.findall(rows) == list(entries(PAGES[page]))


@pytest.mark.parametrize("page", FAILURES)
def test_a_page_says_what_is_in_it_and_leads_back_to_the_index(page: str) -> None:
    opening = PAGES[page][0].source.partition("\n# ")[2].partition("\n## ")[0]
    _, says = opening.split("\n\n", 1)
    sentences = " ".join(says.split()).split(". ")
    assert len(sentences) > 1
    assert "{ref}`index of symptoms <sec-gal-index>`" in sentences[-1]


def test_every_label_of_the_gallery_heads_an_entry() -> None:
    text = "\n".join(c.source for c in CELLS if c.cell_type == "markdown")
    assert re.findall(r"(?m)^\((gal-[\w-]+)\)=", text) == list(entries(CELLS))


@pytest.mark.parametrize("label", entries(CELLS))
def test_an_entry_shows_what_it_says(label: str) -> None:
    assert any(cell.outputs for cell in entries(CELLS)[label])


@pytest.mark.parametrize("label", entries(CELLS))
def test_an_entry_has_a_test_that_fails_on_the_bad_code(label: str) -> None:
    code = "\n".join(cell.source for cell in entries(CELLS)[label])
    # Or a remark or the name of a convention, where nothing is wrong.
    assert re.search(r"(?m)^ *assert not |\.(failed|others)\b|NOTE {3}", code)


def test_an_entry_without_output_is_noticed() -> None:
    text = nbformat.v4.new_markdown_cell("(gal-x)=\n## It fails")
    code = nbformat.v4.new_code_cell("x = 1")
    (cell,) = entries([text, code])["gal-x"]
    assert not cell.outputs


def test_the_tables_carry_the_classes_that_the_filter_looks_for() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    assert "table.symptom-index" in script
    assert '".symptom-group"' in script
    tables = list(groups(CELLS).values())
    assert all(":class-container: symptom-group" in table for table in tables)
    assert sum(table.count("\n| {") for table in tables) == len(symptoms(CELLS))
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert '"symptom_index.js"' in config


def symptoms(cells: Any) -> list[tuple[str, str]]:
    """Return where each row of the index leads, a label or page, and its text."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    heads = dict(re.findall(r"(?m)^\((gal-[a-z-]+)\)=\n## +(\S.*)$", text))
    rows = re.findall(r"(?m)^\| \{(?:ref|doc)\}`(.*?)(?: <(.*)>)?` \| (.*) \|$", text)
    return [
        (target or title, f"{title if target else heads[title]} {words}")
        for title, target, words in rows
    ]


def run_node(code: str, stdin: str = "") -> Any:
    """Run code with the script of the page; return the JSON that it prints."""
    command = [str(NODE), "-e", code, str(SCRIPT)]
    pipes: Any = {"input": stdin, "capture_output": True}
    return json.loads(subprocess.run(command, **pipes, text=True, check=True).stdout)


def nearest(texts: list[str], typed: str) -> tuple[list[int], bool]:
    """Ask the script of the page which rows a typed text leads to."""
    ask = "const [texts, typed] = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    tell = "console.log(JSON.stringify(require(process.argv[1]).nearest(texts, typed)))"
    answer = run_node(ask + tell, json.dumps([texts, typed]))
    return answer["found"], answer["isWhole"]


@needs_node
@pytest.mark.parametrize(
    ("typed", "label"),
    [
        ("Using model.eval() with batchnorm gives high error", "gal-train-eval"),
        ("BatchNorm behaves different in train() and eval()", "gal-train-eval"),
        ("Training accuracy high but test accuracy very low", "gal-train-eval"),
        ("different results when testing one image vs batch", "gal-neighbours"),
        ("difference between model.eval() and torch.no_grad()", "gal-leak"),
        ("Expected more than 1 value per channel when training", "gal-one-value"),
        ("running_mean should contain 256 elements not 512", "gal-channels"),
        ("expected 2D or 3D input (got 4D input)", "gal-channels"),
        ("normalized_shape=[768], expected input with shape [*, 768]", "gal-shape"),
        ("Function 'NativeBatchNormBackward0' returned nan values", "gal-nan"),
        ("Batch norm got a batched tensor as input while", "gal-vmap"),
        ("DataParallel batch norm accuracy lower multi gpu", "gal-data-parallel"),
        ("Keras trainable=False batchnorm still updates", "gal-requires-grad"),
        ("BatchNorm eval mode is reset by the next train()", "gal-thaw"),
        ("Freezing the BatchNormalization during fine-tuning", "gal-fine-tune"),
        ('Missing key(s) in state_dict: "bn1.running_mean"', "gal-buffers-lost"),
        ('Unexpected key(s): "bn1.num_batches_tracked"', "gal-tracked"),
        ("modified by an inplace operation: [torch.cuda.FloatTensor", "gal-inplace"),
        ("stochastic weight averaging poor accuracy", "gal-swa"),
        ("expected scalar type Half but found Float", "gal-autocast"),
        ("Trying to backward through the graph a second time", "gal-graph"),
        ("nan loss when replacing LSTM by LayerNormLSTM", "gal-eps-outside"),
        ("gradient accumulation batchnorm", "sec-split-accumulation"),
        ("fuse conv and batchnorm results do not match", "folding"),
        ("eval worse than train", "gal-train-eval"),
        ("fine-tune batch size 2", "gal-fine-tune"),
        ("loss nan", "gal-eps"),
        ("loss is nan in fp16 for a constant input", "gal-eps"),
        ("layernorm weight does not update in bf16", "sec-fb-less-one"),
        ("LlamaRMSNorm and F.rms_norm outputs do not match", "sec-fb-order"),
        ("different logits for another batch size", "sec-fb-batch"),
        ("outputs differ with number of requests in the batch", "sec-fb-batch"),
        ("batch invariance", "sec-fb-batch"),
        ("hadamard rotation breaks the model", "sec-fb-rotation"),
        ("int8 quantization outlier channels", "sec-fb-outlier"),
        ("QAT freeze batch norm", "sec-fb-fold"),
        ("layernorm weights differ across tensor parallel ranks", "sec-lt-drift"),
        ("FSDP batch norm running_mean differs across ranks", "sec-lt-fsdp"),
        ("attention logits grow, loss spikes", "sec-lt-seen"),
        ("qk norm before or after rope", "sec-lt-rotary"),
        ("softcap leaks the future", "ex-lt-cap"),
        ("class label is ignored adaLN", "sec-cn-wake"),
        ("adaLN-Zero gate gradient is 0", "sec-cn-wake"),
        ("style transfer nan", "sec-cn-adain"),
        ("weight decay on 1 + gamma", "sec-cn-one"),
        ("activations explode without batch norm", "sec-wn-seen"),
        ("spectral_norm Lipschitz constant above 1", "sec-wn-spectral"),
        ("Derf in the place of layer norm", "sec-wn-tanh"),
        ("sync batch norm with sequence parallel", "sec-lt-fsdp"),
        ("AGC loss does not fall", "ex-wn-stuck"),
        ("scaled weight standardization signal vanishes", "ex-wn-fan"),
        ("FedAvg batch norm", "gal-federated"),
        ("opacus GroupNorm", "gal-private"),
        ("test-time adaptation batch norm", "gal-shifted"),
        ("convert batch norm to group norm", "gal-from-batch"),
        # As questions in public trackers of 2024 to 2026 begin:
        ("RMSNorm parameters stay at 1 and do not update", "sec-fb-less-one"),
        ("Batchnorm support with FSDP2", "sec-lt-fsdp-short"),
        ("Expected running_mean to have type BFloat16", "sec-lt-fsdp-short"),
        ("prompt_logprobs argmax disagrees with greedy decode", "sec-fb-batch"),
        ("Gemma 3 is broken with fp16", "sec-fb-statistics"),
        ("MiniMax M2 TP dimension issue in q_norm and k_norm", "sec-lt-ranks"),
        ("OLMo 3 Q/K norms after splitting heads", "sec-lt-ranks"),
        ("models with only offline rotation", "sec-fb-rotation"),
        ("DyT loss does not converge", "sec-wn-fair"),
        ("TP grad all-reduce for qk-layernorm", "sec-lt-ranks"),
        ("Norm weights excluded from weight decay", "gal-weight-decay"),
        ("output is float32 after LlamaRMSNorm", "sec-fc-float32"),
        ("LlamaRMSNorm() Dtype Casting Error", "sec-fc-float32"),
        ("nn.RMSNorm incorrect constants for bfloat16", "sec-fc-layer-norm"),
        ("RMSNorm non-deterministic results", "gal-run-to-run"),
        ("gradients of gains differ between runs", "gal-run-to-run"),
        ("zero_centered_gamma weight decay stability", "sec-fb-less-one"),
        ("QK-norm before the split into heads", "sec-lt-bound"),
        ("zero-initialization only of the final projection", "sec-cn-wake"),
        ("constrain alpha of dynamic tanh", "sec-wn-tanh"),
        ("why parametrize, not normalise the weights at every step", "sec-wn-sphere"),
        ("train layernorm weights with LoRA", "sec-tr-low-rank"),
        ("FedAvg does not synchronize BatchNorm running statistics", "gal-federated"),
        ("AWQ for Gemma 3 is gibberish", "sec-fb-part"),
        ("adaptive LN multiplies by 1+scale in BF16", "sec-cn-digits"),
        ("truncates fp32 to bf16, biasing the residual", "sec-fb-stream"),
        ("logit lens uses cached normalization", "sec-lt-lens"),
        ("How does EMA handle BatchNorm statistics", "gal-swa"),
        ("spectral_norm of a convolution, Lipschitz", "sec-wn-spectral"),
        ("rms_scaling of Keras", "sec-fc-rms-scaling"),
    ],
)
def test_words_that_people_type_lead_to_the_entry(typed: str, label: str) -> None:
    leads, texts = zip(*symptoms(CELLS), strict=True)
    found, _ = nearest(list(texts), typed)
    assert label in [leads[i] for i in found[:5]]


NORMS = ["batch norm 2d", "layer norm", "batch"]
MODELS = ["model eval", "model train", "model thaw", "model checkpoint"]
ENDINGS = ["how to freeze it", "numbers that differ"]
# The rows, what is typed, the rows that are shown, and whether they hold all of it.
SEARCHES: dict[str, tuple[list[str], str, list[int], bool]] = {
    "an empty box shows every row": (["one", "two", "three"], "  ", [0, 1, 2], True),
    "every word hides some": (["nan in eval", "nan", "eval"], "nan eval", [0], True),
    "rare words count most": (MODELS, "model checkpoint fails", [3], False),
    "a word of no row": (["one", "two"], "zebra", [], False),
    "the ending does not count": (ENDINGS, "freezing", [0], True),
    "nor do two": (ENDINGS, "a different number", [1], True),
    **{typed: (NORMS, typed, [0], True) for typed in ("batch_norm", "BatchNorm2d")},
    "spelling": (NORMS, "batch normalisation", [0], True),
}


@needs_node
@pytest.mark.parametrize("name", SEARCHES)
def test_typed_words_lead_to_the_rows_that_fit_best(name: str) -> None:
    rows, typed, *expected = SEARCHES[name]
    assert nearest(rows, typed) == tuple(expected)


FAKE_PAGE = """
const element = () => ({
  append(...children) { this.children = children; }, setAttribute() {},
  addEventListener(_, action) { this.typed = action; }, value: "",
});
const body = (rows) => ({ rows, replaceChildren(...found) { this.rows = found; } });
const row = (text) => ({ textContent: text, cloneNode: () => text });
const table = (texts) => {
  const group = { before(box) { this.box = box; } };
  return {
    tBodies: [body(texts.map(row))], closest: () => group, group,
    cloneNode: () => ({ tBodies: [body([])], removeAttribute() {} }),
  };
};
const { addFilter } = require(process.argv[1]);
globalThis.document = { createElement: element };
const tables = [table(["one cat", "two"]), table(["cat three"])];
addFilter(tables);
const [, input, count, results] = tables[0].group.box.children;
const seen = [];
for (const typed of ["", "cat", "zebra"]) {
  input.value = typed;
  input.typed();
  const rows = results.hidden ? [] : results.tBodies[0].rows;
  seen.push([tables.map(({ group }) => group.hidden), rows, count.textContent]);
}
console.log(JSON.stringify(seen));
"""


@needs_node
def test_typed_words_gather_rows_of_all_groups() -> None:
    empty, some, none = run_node(FAKE_PAGE)
    assert empty == [[False, False], [], "3 of 3 symptoms"]
    assert some == [[True, True], ["one cat", "cat three"], "2 of 3 symptoms"]
    assert none == [[True, True], [], "No entry holds any of these words"]
