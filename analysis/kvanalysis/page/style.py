"""Style sheet and sorting script of the HTML page. Neither loads anything from outside."""

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; color: #1a1a1a; background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 2rem 0 .4rem; max-width: 46rem; }
p, li, dd { max-width: 46rem; overflow-wrap: break-word; }
a { color: #005a8c; }
.lead { color: #555; margin-top: 0; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .78rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .38rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
thead th { border-bottom: 2px solid #999; vertical-align: bottom; }
tbody tr:hover td { background: #f5f8fb; }
.left { text-align: left; }
td small { display: block; color: #5a5a5a; line-height: 1.3; }
td.wrap { white-space: normal; min-width: 7rem; overflow-wrap: break-word; }
.sticky { position: sticky; left: 0; background: #fff; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ▲"; font-size: .7em; }
th[aria-sort=descending] button::after { content: " ▼"; font-size: .7em; }
table.cards { font-size: .82rem; line-height: 1.4; }
.cards th, .cards td { text-align: left; vertical-align: top; white-space: normal; }
.cards td { padding: .45rem .5rem; overflow-wrap: break-word; }
.claims { table-layout: fixed; width: 100%; min-width: 60rem; }
.claims th:nth-child(1), .claims th:nth-child(4) { width: 20%; }
.claims th:nth-child(2) { width: 9%; } .claims th:nth-child(3) { width: 24%; }
.claims th:nth-child(5) { width: 15%; }
.outcome { font-weight: 600; }
.holds { color: #00664a; } .fails { color: #a83c00; } .mixed { color: #005a8c; } .untestable { color: #555; }
figure { margin: 1rem 0 1.4rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { font-size: .85rem; color: #555; max-width: 46rem; }
figure h3 { margin: 1.2rem 0 .3rem; }
.links { font-size: .85rem; }
.aside, footer { font-size: .85rem; color: #555; }
.answers { list-style: none; padding: 0; margin: .4rem 0; }
.answers li { display: grid; grid-template-columns: 3.6rem 1fr; gap: .2rem .6rem; max-width: 58rem;
  padding: .35rem 0; border-bottom: 1px solid #eee; line-height: 1.4; }
.answers b { font-size: 1.15rem; line-height: 1.2; }
.answers small { color: #5a5a5a; }
.choices { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; font-size: .9rem; }
.choices label { min-width: 0; max-width: 100%; } .choices select { font: inherit; max-width: 100%; }
.waiting { height: 0; overflow: hidden; }
.plots { display: flex; flex-wrap: wrap; gap: .5rem; } .plot { flex: 1 1 22rem; min-width: 0; }
nav ul { columns: 22rem; column-gap: 2rem; padding-left: 1.2rem; margin: .4rem 0; font-size: .92rem; }
nav li { break-inside: avoid; } nav li li { font-size: .95em; } nav ul ul { columns: auto; }
dl.facts { display: grid; grid-template-columns: 12rem 1fr;
  gap: .15rem 1rem; font-size: .9rem; }
dl.facts dt { color: #555; } dl.facts dd { margin: 0; overflow-wrap: anywhere; }
dl.terms dt { font-weight: 600; margin-top: .6rem; } dl.terms dd { margin: 0; }
code { font-size: .88em; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: #f7f7f7; padding: .8rem; font-size: .78rem; line-height: 1.4; }
summary { cursor: pointer; }
.note { border-left: 3px solid #d55e00; background: #fdf6f1; padding: .5rem .9rem; max-width: 46rem; }
.note ul { margin: .3rem 0; padding-left: 1.2rem; }
@media (max-width: 40rem) {
  body { padding-top: .6rem; } h1 { font-size: 1.25rem; } h2 { margin-top: 1rem; font-size: 1.1rem; }
  .answers li { grid-template-columns: 1fr; font-size: .92rem; gap: 0; } .plot { flex-basis: 100%; }
  .plain th { white-space: normal; } .plain td.wrap { min-width: 2.6rem; }
  td.sticky { white-space: normal; overflow-wrap: break-word; }
  dl.facts { grid-template-columns: 1fr; } dl.facts dd { margin-bottom: .4rem; }
  .cards, .cards tbody, .cards tr, .cards td { display: block; }
  .claims { min-width: 0; } .cards thead th { width: auto !important; }
  .cards thead tr { display: flex; flex-wrap: wrap; gap: 0 .9rem; }
  .cards thead tr::before { content: "sort by"; color: #555; padding: .28rem 0; }
  .cards thead th { border: 0; padding: .28rem 0; text-decoration: underline; font-weight: 400; }
  .cards tr { border-top: 2px solid #ccc; padding: .4rem 0; }
  .cards thead tr { border: 0; }
  .cards td { border: 0; padding: .12rem 0; }
  .cards td[data-label]::before { content: attr(data-label) ": "; color: #555; }
  .cards td:empty { display: none; }
}
@media print { .scroll { overflow: visible; } }
"""

# Cells carry their sort key in data-key; a cell without one stays last in both sort orders.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key;
    const order = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const compare = (r, s) => {
      const a = key(r), b = key(s);
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return down ? order(b, a) : order(a, b);
    };
    [...body.rows].sort(compare).forEach(row => body.append(row));
  }));
});
"""
