from .lacks import advice_on
