"""The style of the page: colours for light and dark as CSS custom properties, and rules for screen, phone and paper."""

from __future__ import annotations

COLOURS = {
    "ground": ("#ffffff", "#14171a"),
    "panel": ("#ffffff", "#14171a"),
    "text": ("#1b1f24", "#e8eaed"),
    "quiet": ("#59626c", "#a6afb8"),
    "rule": ("#d9dee3", "#33393f"),
    "focus": ("#0b57d0", "#8ab4f8"),
    "c0": ("#0a5ea8", "#6cb2f0"),
    "c1": ("#b03a06", "#f29a6b"),
    "c2": ("#0c7050", "#5fcfa4"),
    "c3": ("#8a3385", "#d79ad3"),
    "c4": ("#5f5a00", "#d6c94f"),
    "c5": ("#54606c", "#a9b4bf"),
    "c6": ("#a8234f", "#f08aa9"),
    "c7": ("#1b1f24", "#e8eaed"),
}
"""The colours by their names, on a light and on a dark ground."""

LIGHT, DARK = ({name: pair[at] for name, pair in COLOURS.items()} for at in range(2))

STYLES = 8
"""Colours of the series. Further series use them again with other dashes."""

RULES = """
*{box-sizing:border-box}
html{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--text);overflow-wrap:break-word}
main,header,footer{max-width:1320px;margin:0 auto;padding:0 24px}
header{padding-top:32px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;font-weight:650}
h2{font-size:1.15rem;line-height:1.35;margin:0 0 4px;font-weight:650}
p{margin:0 0 8px;max-width:75ch}
figcaption p,footer{color:var(--quiet)}
.skip{position:absolute;left:-999px}
.skip:focus{left:8px;top:8px;background:var(--panel);padding:8px 12px;z-index:2}
a,summary{color:inherit}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
.summary{list-style:none;margin:16px 0;padding:0}
.summary li{margin:0 0 6px;max-width:95ch}
.decisions{margin:4px 0 10px;padding:0 0 0 18px}
.switches{display:flex;flex-wrap:wrap;gap:6px 28px;margin:16px 0 8px;padding:10px 0;border-block:1px solid var(--rule)}
fieldset{border:0;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:4px 14px;align-items:center}
legend{float:left;padding:0;margin-right:12px;color:var(--quiet)}
fieldset label{display:inline-flex;gap:6px;align-items:center;min-height:28px}
input{accent-color:var(--focus);width:16px;height:16px;margin:0}
.grid-of-charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));
gap:40px 32px;margin:32px 0}
figure{margin:0;min-width:0}
figcaption p{font-size:.9rem;margin:0 0 10px}
svg{display:block;max-width:100%;height:auto;overflow:visible}
.chart{min-width:520px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:8px 0 16px}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
td{min-width:10ch;max-width:70ch;overflow-wrap:anywhere}
th{font-weight:600}
thead th{color:var(--quiet);font-weight:500}
.r{text-align:right;white-space:nowrap;min-width:0}
details{margin:6px 0 0;font-size:.9rem}
details .scroll{max-height:360px;overflow-y:auto}
details.section{margin:24px 0;font-size:1rem}details.section .scroll{max-height:none}
summary h2{display:inline;color:var(--text)}
summary{cursor:pointer;padding:4px 0;color:var(--quiet);width:fit-content}
.note{font-size:.9rem;color:var(--quiet)}
footer{padding:16px 24px 40px;font-size:.9rem}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--text)}
svg .name{paint-order:stroke;stroke:var(--ground);stroke-width:3px}
svg .tick,svg .label{fill:var(--quiet)}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
.axis{stroke:var(--quiet);stroke-width:1;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.band{opacity:.16;stroke:none}
.mark{stroke-width:1.8;fill:var(--ground)}
.leader{fill:none;stroke:var(--quiet);stroke-width:1;opacity:.55}
.diagonal{stroke:var(--quiet);stroke-width:1.4;stroke-dasharray:1 4;stroke-linecap:round;fill:none}
.d1{stroke-dasharray:8 4}.d2{stroke-dasharray:9 3 2 3}.d3{stroke-dasharray:2 3}
@media (max-width:640px){
main,header,footer{padding-left:16px;padding-right:16px}
.grid-of-charts{gap:32px}
}
@media (forced-colors:active){.line,.mark,.whisker{stroke:CanvasText}}
@media print{
.switches,.skip{display:none}
figure{break-inside:avoid}
main,header,footer{max-width:none;padding:0}
}
"""


def stylesheet(costs: tuple[str, ...]) -> str:
    """Return the rules of a page whose charts are over ``costs``, of which one is shown at a time."""
    themes = (
        f":root{{color-scheme:light;{_properties(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_properties(DARK)}}}}}"
    )
    series = "".join(
        f".s{at}{{stroke:var(--c{at})}}.f{at}{{fill:var(--c{at})}}svg .t{at}{{fill:var(--c{at})}}"
        for at in range(STYLES)
    )
    others = "".join(
        f":root:has(#cost-{shown}:checked) .over-{other}{{display:none}}"
        for shown in costs
        for other in costs
        if other != shown
    )
    return f"{themes}{RULES}{series}{others}"


def _properties(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())
