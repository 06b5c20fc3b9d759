"""Random expressions rendered by jinja2, written to standard output.

usage: python3 expressions.py > expressions.jsonl
Left out: integers beyond 64 bits, powers, and what prints addresses.
"""
import json
import random
import sys

import oracle

R = random.Random(5)
names = [n for n in oracle.ARGS if n not in ("big", "huge")] + ["missing"]
lits=["1","0","-3","2.5","'ab'","' x '","''","true","none","[]","[1,'a']","{'k':1}","(1,2)","'<b>'","1e5","'A,b'","'é'"]
filters=["upper","lower","title","capitalize","trim","length","first","last","list","string","int","float","abs","join(',')","join","reverse|list","sort","unique|list","tojson","e","safe","default('D')","default('D',true)","items|list","round","sum","min","max","map('string')|list","select|list","reject('none')|list","replace('a','b')","wordcount","dictsort","center(9)","map('length')|list","batch(2)|list","map(attribute='role')|list","selectattr('n','defined')|list","format(1)","sort(reverse=true)","tojson(indent=1)","e","count","d"]
tests=["defined","undefined","none","string","mapping","sequence","iterable","number","integer","float","boolean","true","false","odd","even","lower","upper","in [1,'ab']","eq 1","divisibleby 2","callable","sameas none","gt 1","escaped"]
methods=["upper()","strip()","split()","split('a')","split(',',1)","startswith('a')","endswith('b')","replace('a','zz')","lower()","title()","join(['p','q'])","find('a')","items()|list","keys()|list","get('k')","get('zz',3)","count('a')","index(1)","rsplit(None,1)","splitlines()","zfill(5)","center(7,'*')","isdigit()","partition('a')","format(1,2)","capitalize()","swapcase()","lstrip('a')","x","copy()","removeprefix('a')","rstrip()"]
def e(d):
    if d<=0: return R.choice(names+lits)
    k=R.randrange(15)
    a=e(d-1)
    if k<3: return f"({a})|{R.choice(filters)}"
    if k==3: return f"(({a}) is {R.choice(['','not '])}{R.choice(tests)})"
    if k<6: return f"({a}).{R.choice(methods)}"
    if k<9: return f"({a} {R.choice(['+','-','*','/','//','%','~','==','!=','<','>','<=','>=','in','not in','and','or'])} {e(d-1)})"
    if k==9: return f"({R.choice(names)})[{R.choice(['0','-1','1:','::-1',':2','-2:','1:3:2','99','none',e(0),repr('k')])}]"
    if k==10: return f"({a} if {e(d-1)} else {e(d-1)})"
    if k==11: return f"[{a}, {e(d-1)}]"
    if k==12: return f"{{'q': {a}}}"
    if k==13: return f"(not {a})"
    return f"({a}, {e(d-1)})"
out = sys.stdout
out.write(json.dumps({"args":oracle.ARGS},ensure_ascii=False)+"\n")
n=0
while n<2000:
    s="{{ "+e(R.choice([1,2,2,3]))+" }}"
    r=oracle.render(s,oracle.ARGS)
    if 'rendered' in r and (' at 0x' in r['rendered'] or 'generator' in r['rendered'] or len(r['rendered'])>100000): continue
    out.write(json.dumps({"source":s,**r},ensure_ascii=False)+"\n"); n+=1
