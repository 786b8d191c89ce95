"""Assemble cells separated by lines '%%md', '%%code [json]'; usage asm.py src out"""
import sys,json,re
sys.path.insert(0,'/work/main/tools')
import nbformat, notebook_rules as nr
from pathlib import Path
src,out=Path(sys.argv[1]),Path(sys.argv[2])
cells=[]
old={}
if out.exists():
    for c in nbformat.read(out,4).cells:
        if c.cell_type=='code': old[c.source]=c
for part in re.split(r'(?m)^(?=%%(?:md|code))',src.read_text()):
    if not part.strip(): continue
    head,_,body=part.partition('\n'); body=body.strip('\n')
    if head.startswith('%%md'): cells.append(nbformat.v4.new_markdown_cell(body))
    else:
        c=nbformat.v4.new_code_cell(body)
        meta=head[6:].strip()
        if meta:
            c.metadata=nbformat.from_dict(json.loads(meta))
        cells.append(c)
nb=nbformat.v4.new_notebook(cells=cells)
out.write_text(nr.dumps(nr.normalize(nb,out.stem)))
words=len(re.findall(r'\w+',nr.markdown(nb))); print(len(cells),'cells',words,'words')
