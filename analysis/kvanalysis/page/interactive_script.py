"""Scripts of the interactive figure: one unpacks Bokeh, one passes the chosen numbers to its sources."""

# Old browsers cannot unpack it: they keep the pictures.
UNPACK = """
(async () => {
  if (!window.DecompressionStream) return;
  const coded = atob(document.getElementById("packed").textContent);
  const stream = new Blob([Uint8Array.from(coded, c => c.charCodeAt(0))]).stream();
  const text = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
  const script = document.createElement("script");
  script.textContent = `(() => {${text}})();`;
  document.head.append(script);
})();
"""

# told: {items: figures as Bokeh's JSON, data: the dict that page/curves_data.py describes}.
GLUE = """
const {points, views, measures, families, edges, row, oneshot} = told.data, chosen = name => {
  const select = document.getElementById("choose-" + name);
  return select && select.value;
};
const columns = ["label", "params", "colour", "marker"];
const take = (numbers, places) => places.map(i => numbers[i]);
const fill = (source, data) => { source.data = data; };
const named = name => Bokeh.documents.map(d => d.get_model_by_name(name)).find(model => model);

// Ticks of a logarithmic axis: the coarsest factors of powers of ten with at least five ticks.
const tenths = Array.from({length: 90}, (_, i) => 1 + i / 10);
const factorsOfTicks = [[1], [1, 3], [1, 2, 5], tenths.filter(Number.isInteger), tenths];
function ticksIn(low, high) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) powers.push(power);
  const inside = tick => low <= tick && tick <= high;
  const ticks = factorsOfTicks.map(factors => powers.flatMap(power =>
    factors.map(factor => +(factor * 10 ** power).toPrecision(2)).filter(inside)));
  return ticks.find(own => own.length >= 5) ?? ticks.at(-1);
}

function setRange(range, axes, [low, high]) {
  [range.start, range.end] = [low, high];
  for (const axis of axes) axis.ticker.ticks = ticksIn(low, high);
}

function pointsOf(view, measure, places) {
  const data = {x: take(view.x, places), kib: take(view.kib, places), heads: take(view.heads, places)};
  for (const name of columns) data[name] = take(points[name], places);
  data.budget = take(points.budget, places).map(b => b === null ? "none" : b);
  data.y = take(measure.mean, places);
  data.low = take(measure.low, places).map((v, i) => v === null ? NaN : v);
  data.high = take(measure.high, places).map(v => v === null ? NaN : v);
  data.loss = places.map((i, at) => data.y[at] + (measure.low[i] === null
    ? ", no interval" : " [" + measure.low[i] + ", " + measure.high[i] + "]"));
  return data;
}

function drawCurves(view, measure) {
  const known = points.label.map((_, i) => i).filter(i => measure.mean[i] !== null && view.x[i] !== null);
  for (const family of families) {
    const own = known.filter(i => points.family[i] === family).sort((a, b) => view.x[a] - view.x[b]);
    const labels = [...new Set(take(points.label, own))];
    const of = label => own.filter(i => points.label[i] === label);
    fill(named("points_" + family), pointsOf(view, measure, own));
    fill(named("lines_" + family), {
      xs: labels.map(l => take(view.x, of(l))), ys: labels.map(l => take(measure.mean, of(l))),
      colour: labels.map(l => points.colour[of(l)[0]]), dash: labels.map(l => points.dash[of(l)[0]])});
    const ended = labels.filter(l => measure.ends[l]), at = l => measure.ends[l][0];
    const ends = named("ends_" + family);
    fill(ends, {x: ended.map(l => view.x[at(l)]), y: ended.map(l => measure.mean[at(l)]),
      x1: ended.map(() => ends.tags[0] * 1.08), y1: ended.map(l => measure.ends[l][1]), label: ended,
      colour: ended.map(l => points.colour[at(l)]), marker: ended.map(l => points.marker[at(l)])});
  }
  for (const family of families) {
    const plot = named(family);
    setRange(plot.y_range, plot.left, measure.range);
  }
  const above = known.filter(i => measure.mean[i] > measure.range[1]);
  document.getElementById("above").textContent = above.length ? "Above the axis: " + above.map(i =>
    points.label[i] + " (" + view.x[i] + " %) " + measure.mean[i]).join(", ") + "." : "";
}

function drawDots(view, measure) {
  const place = +chosen("class"), low = edges[place - 1], high = edges[place] ?? Infinity;
  const best = new Map();
  points.label.forEach((label, i) => {
    const x = view.x[i], y = measure.mean[i], before = best.get(label);
    if (x === null || y === null || x <= low || x > high) return;
    if (before === undefined || y < measure.mean[before]) best.set(label, i);
  });
  const order = [...best.values()].sort((a, b) => measure.mean[b] - measure.mean[a]);
  const name = i => points.label[i] + (points.family[i] === "oneshot" ? ", " + oneshot : "");
  const plot = named("classes"), data = pointsOf(view, measure, order);
  data.place = order.map(name);
  plot.y_range.factors = data.place.length ? data.place : ["no method"];
  plot.height = 70 + row * Math.max(order.length, 2);
  fill(named("points_classes"), data);
  const least = Math.min(...data.y);
  setRange(plot.x_range, plot.below, [order.length ? least / 1.5 : measure.range[0], measure.range[1]]);
  const above = order.filter(i => measure.mean[i] > measure.range[1]);
  document.getElementById("above").textContent = above.length ?
    "Beyond the axis: " + above.map(i => name(i) + " " + measure.mean[i]).join(", ") + "." : "";
}

function draw() {
  const view = views[+chosen("view")], name = chosen("measure"), measure = view.measures[name];
  for (const document of Bokeh.documents) for (const root of document.roots())
    for (const [place, label] of [["left", measures[name].replace(" (", "\\n(")], ["below", measures[name]]])
      for (const axis of root[place]) if (axis.name === "loss_axis") axis.axis_label = label;
  (chosen("class") ? drawDots : drawCurves)(view, measure);
}

Bokeh.logger.set_level("warn");  // otherwise it logs to the console when idle
const live = document.getElementById("live"), still = document.getElementById("static");
live.hidden = false;  // Bokeh needs its width; it has no height until the figure replaces the picture
live.className = "waiting";
Promise.all(told.items.map(item => Bokeh.embed.embed_item(item))).then(() => {
  draw();
  still.hidden = true;
  live.className = "";
  for (const select of live.querySelectorAll("select")) select.addEventListener("change", draw);
}).catch(problem => { live.hidden = true; still.hidden = false; throw problem; });
"""
