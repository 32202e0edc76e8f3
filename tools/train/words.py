"""Names, objects and other words of the generated problems.

Words in the HELD lists never occur in training text: they are kept for the
evaluation with unknown content.
"""

NAMES = """Ada Adam Aisha Alan Alba Alice Amir Amy Ana Andre Anna Anton Aria Arun Asha Ava Axel Bea Ben Bianca Boris
Bruno Cara Carl Carlos Carmen Cathy Chloe Clara Cleo Cora Dan Dana Dario David Dean Dina Dora Dylan Eda Eli Elif
Elena Ella Emil Emma Enzo Erik Esra Eva Ewa Farid Fatima Felix Fiona Flora Frank Freya Gabe Gaia Gemma George Gina
Grace Greta Hana Hanna Hans Harry Hassan Helen Henry Hiro Holly Hugo Ian Ida Ines Ingrid Iris Isaac Ivan Ivy Jack
Jada James Jan Jana Jasper Jean Jenny Jin Joan Joe John Jonas Jose Judy Julia Kai Karen Karl Kate Kenji Kim Kira
Lara Lars Laura Lea Lena Leo Lian Lila Lily Lin Linda Lisa Liu Lola Louis Luca Lucy Luis Luna Maja Malik Marco
Maria Mark Marta Martin Mary Matteo Maya Mei Mia Milan Mina Mira Nadia Nate Nico Nina Noah Nora Olga Oliver Omar
Oscar Otto Pablo Paul Pedro Peter Petra Pia Priya Quinn Rachel Rafael Raj Ravi Rita Robert Rosa Ruth Ryan Sally Sam
Sara Sasha Selma Sofia Sonia Stefan Sven Tara Ted Theo Tina Tobias Tom Tony Uma Ursula Vera Victor Walter Wendy
Willa Yara Yuki Yusuf Zara Zoe""".split()
HELD_NAMES = """Mara Bella Caleb Delia Edgar Fabian Gloria Hector Imani Jorge Klara Lionel Mabel Nolan Odette Phoebe Ramona
Silas Thelma Valerie Wilma Yasmin Zeno Tilda Rufus Noemi Kofi Dmitri Astrid Benny""".split()

OBJECTS = """acorns albums almonds apples badges bags balloons balls bananas beads beans bells berries blankets blocks books
bottles boxes bracelets brushes buckets buttons cakes candies candles cans caps cards carrots chairs cherries coins
combs cookies corks crayons cups dates dice dolls drums eggs envelopes erasers feathers figs flags flowers forks frogs
gems glasses gloves grapes hats hooks jars keys kites knots labels lamps leaves lemons letters lids limes magnets
maps marbles masks matches medals melons mugs mushrooms nails napkins needles notebooks nuts olives onions oranges
paintings pans papers peaches peanuts pears pebbles pencils pens photos pies pillows pins plates plums postcards
posters potatoes pots puzzles radishes ribbons rings rocks ropes roses rulers screws seeds shells shirts shoes socks
spoons stamps stars stickers stones straws tickets tiles tomatoes tools towels toys trees tulips walnuts whistles
""".split()
HELD_OBJECTS = """scarves mittens parcels daisies lanterns trumpets cucumbers pretzels ladders pumpkins mirrors acrobats
dominoes candlesticks sandwiches crystals pinecones""".split()

SYLLABLES = """ba be bi bo da de di do fa fe ga go ha he ja jo ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe pi po ra
re ri ro sa se si so ta te ti to va ve vi vo wa we ya yo za ze zo bra dre fli gro kla plo sha tri tha cho ster bel
dan fin gar hol kin lor man nel per ros sen tor vin wel zor lia ria nia rio bert mond wick ton ley""".split()

ONSETS = """b c d f g h j k l m n p r s t v w y z ch sh th br cl cr dr fl gr pl pr sc sl sp st str tr tw sw qu sm sn gl bl
mb nd nt ng rd rm rn ll mm ss tt cc dd ck mp nk pp ph lm rt""".split()
VOWELS = """a e i o u a e i o u ai au ea ee ei ie io oa oo ou ue y""".split()
ENDINGS = """ b d f g k l m n p r t x ck ch dle ble ct er et en el in on um us ing ive ow rd rk rt st th nd nt le tion ment
ness wich stick cone bet low ter""".split() + [""] * 8

PLACES = ["box", "drawer", "bag", "room", "shop", "garden", "cupboard", "basket", "cellar", "desk"]
GROUPS = ["friends", "children", "cousins", "neighbors", "players", "classmates", "students"]
BINS = ["boxes", "bags", "jars", "trays", "baskets", "crates", "rows", "shelves", "piles"]
SINGULAR = {"boxes": "box", "bags": "bag", "jars": "jar", "trays": "tray", "baskets": "basket", "crates": "crate",
            "rows": "row", "shelves": "shelf", "piles": "pile", "friends": "friend", "children": "child",
            "cousins": "cousin", "neighbors": "neighbor", "players": "player", "classmates": "classmate",
            "students": "student"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
