"""The page's looks. Figures keep a white card in the dark, as their colours are chosen for paper."""

CSS = """\
:root {
  --ink: #1c1f23; --faint: #5d646d; --paper: #ffffff; --card: #ffffff; --line: #d9dde2; --stripe: #f5f6f8;
  --accent: #00568a; --note: #fff6e0; --note-line: #b87700; --zoom: 1.3;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8eb; --faint: #a5acb5; --paper: #15181c; --line: #3a4048; --stripe: #1d2126;
    --accent: #7cc4f4; --note: #33290f; --note-line: #e0a83a;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 0 1.25rem 4rem; max-width: 86rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { min-width: 0; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 2rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .75rem; overflow-wrap: anywhere; }
section { margin-top: 2.5rem; padding-top: 1.25rem; border-top: 1px solid var(--line); scroll-margin-top: 1rem; }
p { max-width: 46rem; margin: 0 0 1rem; overflow-wrap: break-word; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
nav { padding: 1rem 0 0; font-size: .9rem; }
nav h2 { font-size: .8rem; color: var(--faint); font-weight: 600; margin: 0 0 .4rem; }
nav ol { margin: 0; padding: 0; list-style: none; }
nav a { display: block; padding: .2rem 0; text-decoration: none; }
nav a:hover { text-decoration: underline; }
@media (min-width: 70rem) {
  body { display: grid; grid-template-columns: 12rem minmax(0, 1fr); column-gap: 3rem; }
  nav { position: sticky; top: 0; align-self: start; max-height: 100vh; overflow-y: auto; padding: 2.4rem 0 2rem; }
}
.note {
  background: var(--note); border-left: 4px solid var(--note-line); padding: .6rem .9rem; border-radius: 0 4px 4px 0;
}
.note strong { margin-right: .3em; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .75rem 1.5rem; margin: 0 0 1.25rem; }
.facts dt { font-size: .8rem; color: var(--faint); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow: auto; max-height: 85vh; margin: 0 0 1.5rem; width: fit-content; max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: 0 0 .4rem; caption-side: top; }
th, td { padding: .32rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.text, td.text, tbody th, tfoot th { text-align: left; }
td.text { white-space: normal; min-width: 8rem; overflow-wrap: anywhere; }
thead th {
  position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 2px solid var(--faint);
  vertical-align: bottom; font-weight: 600;
}
tbody th, tfoot th { font-weight: 500; position: sticky; left: 0; z-index: 1; background: var(--paper); }
thead th:first-child { left: 0; z-index: 3; }
tbody tr:nth-child(odd) > * { background: var(--stripe); }
tfoot > tr:first-child > * { border-top: 2px solid var(--faint); }
tfoot th, tfoot td { font-weight: 600; background: var(--paper); }
.swatch {
  display: inline-block; vertical-align: -.16em; width: 2.3em; height: 1.05em; background: #ffffff; border-radius: 3px;
}
figure { margin: 0 0 2rem; }
.chart { background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: .75rem; overflow-x: auto; width: fit-content; max-width: 100%; }
.chart svg { display: block; height: auto; width: calc(var(--w) * var(--zoom)); max-width: max(100%, calc(var(--w) * .9)); }
.chart svg * { stroke-linejoin: round; stroke-linecap: butt; }
.chart img { display: block; max-width: max(100%, 28rem); height: auto; }
figcaption { font-size: .875rem; color: var(--faint); max-width: 46rem; padding-top: .5rem; }
.save { white-space: nowrap; }
details { margin: 0 0 1.5rem; }
summary { cursor: pointer; margin-bottom: .5rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .8rem; color: var(--faint); }
@media (max-width: 40rem) {
  body { padding: 0 .9rem 3rem; }
  h1 { font-size: 1.4rem; }
  .chart { padding: .4rem; }
  .scroll { max-height: none; }
  tbody th, tfoot th { max-width: 9.5rem; overflow: hidden; text-overflow: ellipsis; }
}
@media print {
  :root {
    --ink: #000000; --faint: #444444; --paper: #ffffff; --line: #bbbbbb; --stripe: #f3f3f3; --zoom: 1;
    --accent: #000000; --note: #ffffff; --note-line: #444444;
  }
  body { display: block; font-size: 10pt; padding: 0; max-width: none; }
  nav, .save { display: none; }
  .scroll { max-height: none; overflow: visible; }
  thead th, tbody th, tfoot th { position: static; }
  table { font-size: 8pt; }
  th, td { padding: 2pt 4pt; }
  .chart { border: 0; padding: 0; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  thead { display: table-header-group; }
  details::details-content { content-visibility: visible; }
}
"""
